"""What each kind of action costs, and both ends of a pipe, in seconds or any other unit of time."""

from dataclasses import dataclass, fields

from jaxpipe.schedules.actions import Action, Kind

LEAST, MOST = 1e-9, 1e9
"""The costs in between can be added and divided without a thought; no action of a device is beyond them."""

ENDS = ("head", "embedding")


@dataclass(frozen=True)
class Costs:
    """Seconds for F, B, W and R: one number, or one for each stage; BW costs B + W.

    R counts only in schedules that have R, whose B are then without the forward that they would do again.
    head: the whole head for one microbatch, forward and backward, on one device.
    embedding: one lookup for one microbatch on one device; its gradient takes as long again.

    ``ValueError`` lists all costs that are not between ``LEAST`` and ``MOST``; an end may also cost nothing.
    """

    F: float | tuple[float, ...] = 1.0
    B: float | tuple[float, ...] = 1.0
    W: float | tuple[float, ...] = 1.0
    head: float = 0.0
    embedding: float = 0.0
    R: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        faults = [
            f"cost {field.name}={value} must be {'0, or ' * (field.name in ENDS)}at least {LEAST:g} "
            f"and at most {MOST:g}"
            for field in fields(self)
            for value in _as_tuple(getattr(self, field.name))
            if not LEAST <= value <= MOST and not (field.name in ENDS and value == 0)
        ]
        if faults:
            raise ValueError("; ".join(faults))


def cost_of(action: Action, costs: Costs) -> float:
    """Seconds that ``action`` takes."""
    if action.kind is Kind.BW:
        return _at_stage(costs.B, action.stage) + _at_stage(costs.W, action.stage)
    return _at_stage(getattr(costs, action.kind), action.stage)


def with_ends(costs: Costs, num_stages: int) -> Costs:
    """Per stage, with each end in the stage that it lies at, whose rank alone has it.

    The head is part of the last F, since nothing but the last B waits for it; a lookup comes before
    the first F, its gradient after the first B.
    """
    F, B, W = (
        [_at_stage(value, stage) for stage in range(num_stages)] for value in (costs.F, costs.B, costs.W)
    )
    F[0] += costs.embedding
    B[0] += costs.embedding
    F[-1] += costs.head
    return Costs(tuple(F), tuple(B), tuple(W), R=costs.R)


def find_cost_faults(costs: Costs, num_stages: int) -> list[str]:
    """Costs given per stage, but not for each stage once."""
    return [
        f"{len(value)} costs {field.name} for {num_stages} stages; give one for each, or a single number"
        for field in fields(costs)
        if isinstance(value := getattr(costs, field.name), tuple) and len(value) != num_stages
    ]


def _as_tuple(value: float | tuple[float, ...]) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def _at_stage(value: float | tuple[float, ...], stage: int) -> float:
    return value[stage] if isinstance(value, tuple) else value


UNIT_COSTS = Costs()
"""1 for each of F, B, W and R, as published figures suppose."""
