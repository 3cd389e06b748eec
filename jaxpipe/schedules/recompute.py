"""Recomputation as an action of its own: where R stands in an order that has none.

    rank 1 |..F0F1F2....B0..F3   the forward, done again inside B, lengthens B, for which rank 0 waits
    rank 1 |..F0F1F2R0..B0..F3   R needs nothing of another rank: it runs while this one waits

Each R stands directly before its B, which already hides it wherever the rank waits for the gradient, or
before an earlier action that its rank waits for. In the order of their B, never so early that more is held:

    from R to B    at most ``most_held`` of a rank: all that a backward without remat reads, of one stage
    from R to W    inputs of linear layers, which stay until W: on the fullest rank at most ``most_held - 1``
                   more than with each R directly before its B

No number bounds the latter, since each R directly before its B already needs as many as the schedule delays
W. What F leaves until R is the inputs of layers alone, as with full remat.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.activations import peak_held
from jaxpipe.schedules.costs import UNIT_COSTS, Costs, cost_of, find_cost_faults, with_ends
from jaxpipe.schedules.dependencies import inputs, ready_order, result
from jaxpipe.schedules.schedule import Schedule
from jaxpipe.schedules.simulate import find_simulation_faults, simulate

TOLERANCE = 1e-9
"""Of a time: sums of costs may be so much more than it."""

SHARES = (1.0, 0.0)
"""How much of an R a wait must hide at least, for the R to run in it; each is tried."""


def with_recompute(
    schedule: Schedule,
    *,
    costs: Costs = UNIT_COSTS,
    transfer: float = 0.0,
    sync: str = "async",
    transfer_ticks: int = 1,
    most_held: int = 1,
) -> Schedule:
    """The schedule with an R for each backward; all others keep their order.

    Placed for these costs and this model of waiting, those of ``simulate``; never slower there than with
    each R directly before its B. The same arguments give the same order. ``ValueError`` lists all faults.
    """
    faults = find_recompute_faults(schedule) + find_cost_faults(costs, schedule.placement.num_stages)
    faults += find_simulation_faults(transfer=transfer, sync=sync)
    if most_held < 1:
        faults.append(f"most_held={most_held} must be at least 1")
    if faults:
        raise ValueError("; ".join(faults))

    def makespan(placed: Schedule) -> float:
        return simulate(
            placed, costs=costs, transfer=transfer, sync=sync, transfer_ticks=transfer_ticks
        ).makespan

    direct = directly_before(schedule)
    most_owed = max(peak_held(direct, Kind.W, since=Kind.R)) + most_held - 1
    paces = [_Pace(_seconds_of(costs, schedule, sync), transfer)]
    if sync == "neighbor":
        paces.append(_Pace(lambda action: 1.0, transfer_ticks - 1.0))
    placed = [direct]
    for pace in paces:
        placed += [
            _early(schedule, pace, share=share, most_held=most_held, most_owed=most_owed) for share in SHARES
        ]
    return min(dict.fromkeys(placed), key=makespan)


def find_recompute_faults(schedule: Schedule) -> list[str]:
    """Why no R can be placed in a schedule."""
    if schedule.recomputes:
        return [f"schedule {schedule.name!r} has R already; leave it as it is"]
    return []


def directly_before(schedule: Schedule) -> Schedule:
    """Each R right before its B, or BW."""

    def order(actions: Sequence[Action]) -> Iterator[Action]:
        for action in actions:
            if is_backward(action):
                yield recompute_for(action)
            yield action

    return replace(schedule, orders=tuple(tuple(order(actions)) for actions in schedule.orders))


def is_backward(action: Action) -> bool:
    """Whether it is one that an R can come before."""
    return action.kind in (Kind.B, Kind.BW)


def recompute_for(action: Action) -> Action:
    """The R that a B or BW needs."""
    return action._replace(kind=Kind.R)


@dataclass(frozen=True)
class _Pace:
    """How long actions and messages take while R are being placed: in seconds, or in ticks."""

    seconds: Callable[[Action], float]
    transfer: float


@dataclass
class _Rank:
    """How far a rank has come. due: the R to come; waiting, owed: R done whose B, whose W are to come."""

    due: deque[Action]
    order: list[Action] = field(default_factory=list)
    free: float = 0.0
    waiting: int = 0
    owed: int = 0

    def run(self, action: Action, *, start: float, seconds: float) -> None:
        self.order.append(action)
        self.free = start + seconds
        if action.kind is Kind.R:
            self.due.popleft()
            self.waiting += 1
            self.owed += 1
        else:
            self.waiting -= is_backward(action)
            self.owed -= action.kind in (Kind.W, Kind.BW)


def _seconds_of(costs: Costs, schedule: Schedule, sync: str) -> Callable[[Action], float]:
    timed = with_ends(costs, schedule.placement.num_stages) if sync == "async" else costs
    return lambda action: cost_of(action, timed)


def _early(schedule: Schedule, pace: _Pace, *, share: float, most_held: int, most_owed: int) -> Schedule:
    """Each R in the first wait of its rank that hides enough of it, else directly before its B."""
    num_stages = schedule.placement.num_stages
    ranks = [_Rank(deque(map(recompute_for, filter(is_backward, order)))) for order in schedule.orders]
    computed: dict[Action, tuple[int, float]] = {}

    def may_recompute(rank: _Rank) -> bool:
        is_possible = bool(rank.due) and rank.due[0]._replace(kind=Kind.F) in computed
        return is_possible and rank.waiting < most_held and rank.owed < most_owed

    for number, action in ready_order(schedule):
        rank, ready = ranks[number], 0.0
        for need in inputs(action, num_stages):
            sender, time = computed[need]
            ready = max(ready, time + (pace.transfer if sender != number else 0.0))
        while rank.free < ready and may_recompute(rank):
            seconds = pace.seconds(rank.due[0])
            if rank.free + share * seconds > ready * (1 + TOLERANCE):
                break
            rank.run(rank.due[0], start=rank.free, seconds=seconds)
        if is_backward(action) and rank.due and rank.due[0] == recompute_for(action):
            rank.run(rank.due[0], start=rank.free, seconds=pace.seconds(rank.due[0]))
        rank.run(action, start=max(rank.free, ready), seconds=pace.seconds(action))
        computed[result(action)] = number, rank.free
    return replace(schedule, orders=tuple(tuple(rank.order) for rank in ranks))
