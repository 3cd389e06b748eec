"""How much memory a rank may use, in stage activations or in bytes, and how much a schedule needs.

One microbatch on a rank's whole share of the layers counts as one activation; on one of v chunks it is 1/v of
that. So 1f1b needs ``num_ranks`` activations, on rank 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.schedule import Schedule

TOLERANCE = 1e-9
"""Of a limit: sums of fractions of it may be so much more than it."""


LEAST, MOST = 1e-9, 1e18
"""Sizes in between can be added and divided without a thought; no device has more bytes."""


@dataclass(frozen=True)
class Memory:
    """A limit for each rank; all in one unit, such as activations (the default) or bytes.

    limit: the most that a rank may hold.
    activation: what one microbatch holds on a rank's whole share, from its F until its B.
    until_weight: what it holds from B until W; None for as much as until B.
    weights: a rank's weights and their gradients, once for each pipe that the schedule has.

    ``ValueError`` lists all that is no size.
    """

    limit: float
    activation: float = 1.0
    until_weight: float | None = None
    weights: float = 0.0

    def __post_init__(self) -> None:
        faults = []
        for name, value in vars(self).items():
            least = LEAST if name in ("limit", "activation") else 0.0
            if value is not None and not least <= value <= MOST:
                faults.append(f"memory {name}={value} must be at least {least:g} and at most {MOST:g}")
        if faults:
            raise ValueError("; ".join(faults))


def changes(memory: Memory, num_chunks: int) -> dict[Kind, float]:
    """What each kind of action adds to what its rank holds; what R makes again is not counted."""
    activation = memory.activation / num_chunks
    until_weight = activation if memory.until_weight is None else memory.until_weight / num_chunks
    return {
        Kind.F: activation,
        Kind.B: until_weight - activation,
        Kind.W: -until_weight,
        Kind.BW: -activation,
        Kind.R: 0.0,
    }


def needed(schedule: Schedule, memory: Memory) -> float:
    """The most that any rank holds, weights included, if ``schedule`` runs."""
    change = changes(memory, schedule.placement.num_chunks)
    return memory.weights * schedule.placement.num_pipes + max(
        _peak(order, change) for order in schedule.orders
    )


def fits(schedule: Schedule, memory: Memory | None) -> bool:
    """Whether no rank needs more than the limit; None is no limit."""
    return memory is None or needed(schedule, memory) <= memory.limit * (1 + TOLERANCE)


def least_limit(memory: Memory) -> float:
    """The smallest limit that any single-pipe schedule fits: one microbatch at a time."""
    until_weight = memory.activation if memory.until_weight is None else memory.until_weight
    return memory.weights + max(memory.activation, until_weight)


def _peak(order: tuple[Action, ...], change: dict[Kind, float]) -> float:
    return max(_running(order, change), default=0.0)


def _running(order: tuple[Action, ...], change: dict[Kind, float]) -> Iterator[float]:
    held = 0.0
    for action in order:
        held += change[action.kind]
        yield held
