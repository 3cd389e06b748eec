"""When each action runs, given what it costs: makespan, bubble, and why ranks are idle.

Two models of how ranks wait for each other:

async     every message its own: an action starts when its rank is free and its inputs have arrived
neighbor  the lowered program: what a rank does in tick t starts when its own tick t-1 and its ring
          neighbours' tick t-``transfer_ticks`` have ended, since messages travel at every tick;
          a tick without action takes no time; with ``specialised``, as in the lowered program of segments
          (lowering/segments.py), it waits only for those neighbours with whom it exchanges a message then

In the first, each end of a pipe lies on the rank of its stage: the head is part of the last F, the embedding
of the first F and B. In the second all ranks share an end, a p-th each, and wait for each other before it:
the embedding in the tick of the first F, the head and the embedding's gradient in the tick after the last F
and the first B. What costs nothing is not waited for.

The second is why actions of equal cost, and schedules whose ranks do the same kind in the same tick,
are worth having.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.activations import peak_held
from jaxpipe.schedules.costs import MOST, UNIT_COSTS, Costs, cost_of, find_cost_faults, with_ends
from jaxpipe.schedules.dependencies import inputs, ready_order, result
from jaxpipe.schedules.messages import sent_by
from jaxpipe.schedules.placement import Placement
from jaxpipe.schedules.schedule import Schedule
from jaxpipe.schedules.ticks import assign_ticks

SYNCS = ("async", "neighbor")


class Cause(StrEnum):
    """Why a rank is idle."""

    DEPENDENCY = "dependency"
    """an input is still being computed on another rank"""
    TRANSFER = "transfer"
    """the input has been computed and travels"""
    NEIGHBOR = "neighbor"
    """the input is there, but the tick waits for the neighbours' tick, which began later"""
    IMBALANCE = "imbalance"
    """the input is there, but a neighbour's action of the same tick takes longer than its own, if any"""
    ENDS = "ends"
    """the others are not yet there to share an end of the pipe"""
    DRAIN = "drain"
    """this rank has ended, others have not"""
    OVERHEAD = "overhead"
    """what a tick costs besides; of measured steps alone"""


@dataclass(frozen=True)
class Idle:
    """A stretch of time, in seconds, in which ``rank`` does nothing."""

    rank: int
    start: float
    end: float
    cause: Cause


@dataclass(frozen=True)
class Simulation:
    """Times in seconds, activations in stage activations.

    ``ends`` has the start and the end of each stretch in which all ranks share ends of the pipe; where they
    were measured, each rank has its own in ``ends_by_rank``.
    ``work[rank]`` is the sum of its actions' costs and of these; ``ideal`` the largest of these; ``bubble``
    what the makespan is longer. ``longest_rank_span`` is the longest time from a rank's first action to the
    end of its last: with the optimizer step of each rank following at once, it is what a step costs.
    """

    start: Mapping[Action, float]
    end: Mapping[Action, float]
    work: tuple[float, ...]
    idle: tuple[Idle, ...]
    ends: tuple[tuple[float, float], ...]
    makespan: float
    longest_rank_span: float
    peak_until_backward: tuple[int, ...]
    peak_until_weight: tuple[int, ...]
    ends_by_rank: tuple[tuple[tuple[float, float], ...], ...] = ()

    def ends_of(self, rank: int) -> tuple[tuple[float, float], ...]:
        """The stretches in which ``rank`` works at ends of the pipe, together with all others."""
        return self.ends_by_rank[rank] if self.ends_by_rank else self.ends

    @property
    def ideal(self) -> float:
        return max(self.work)

    @property
    def bubble(self) -> float:
        return self.makespan - self.ideal

    @property
    def bubble_fraction(self) -> float:
        return self.bubble / self.makespan


def simulate(
    schedule: Schedule,
    *,
    costs: Costs = UNIT_COSTS,
    transfer: float = 0.0,
    sync: str = "async",
    transfer_ticks: int = 1,
    specialised: bool = False,
) -> Simulation:
    """Time a schedule as it is; ``split_backward`` or ``fuse_backward`` it first to see what ``lower`` gives.

    ``transfer`` is the seconds that a message takes to another rank; ``transfer_ticks`` and ``specialised``
    are for ``sync="neighbor"`` alone. ``ValueError`` lists all that is wrong; ``DeadlockError`` if ranks wait
    for each other for ever.
    """
    faults = find_cost_faults(costs, schedule.placement.num_stages)
    faults += find_simulation_faults(transfer=transfer, sync=sync)
    if faults:
        raise ValueError("; ".join(faults))
    ends: list[tuple[float, float]] = []
    waits: list[list[_Wait]] = [[] for _ in schedule.orders]
    if sync == "neighbor":
        start, ends, waits = _neighbor_starts(
            schedule, costs, transfer=transfer, transfer_ticks=transfer_ticks, specialised=specialised
        )
    else:
        if costs.head or costs.embedding:
            costs = with_ends(costs, schedule.placement.num_stages)
        start = _async_starts(schedule, costs, transfer=transfer)
    seconds = {action: cost_of(action, costs) for action in start}
    end = {action: time + seconds[action] for action, time in start.items()}
    shared = sum(until - since for since, until in ends)
    makespan = max(*end.values(), *(until for _, until in ends), 0.0)
    return Simulation(
        start=start,
        end=end,
        work=tuple(shared + sum(seconds[action] for action in order) for order in schedule.orders),
        idle=tuple(
            _idle_stretches(
                schedule,
                start=start,
                end=end,
                ends=ends,
                waits=waits,
                transfer=transfer,
                makespan=makespan,
            )
        ),
        ends=tuple(ends),
        makespan=makespan,
        longest_rank_span=max(end[order[-1]] - start[order[0]] for order in schedule.orders if order),
        peak_until_backward=peak_held(schedule, Kind.B),
        peak_until_weight=peak_held(schedule, Kind.W),
    )


def find_simulation_faults(*, transfer: float, sync: str) -> list[str]:
    """What is wrong with these two, each as rule, value and remedy."""
    faults = []
    if not 0 <= transfer <= MOST:
        faults.append(f"transfer={transfer} must be at least 0 and at most {MOST:g}")
    if sync not in SYNCS:
        faults.append(f"sync={sync!r} must be one of {', '.join(SYNCS)}")
    return faults


class _Wait(NamedTuple):
    """A rank's wait for the last of its neighbours at a tick.

    ``longer_from`` is when that would have been there, had its action taken no longer than the rank's own in
    the tick before; ``arrived``, when what it sends has arrived.
    """

    longer_from: float
    there: float
    arrived: float


def _async_starts(schedule: Schedule, costs: Costs, *, transfer: float) -> dict[Action, float]:
    start: dict[Action, float] = {}
    computed: dict[Action, tuple[int, float]] = {}
    free = [0.0] * schedule.num_ranks
    for rank, action in ready_order(schedule):
        time = free[rank]
        for need in inputs(action, schedule.placement.num_stages):
            sender, ready = computed[need]
            time = max(time, ready + (transfer if sender != rank else 0.0))
        start[action] = time
        free[rank] = time + cost_of(action, costs)
        computed[result(action)] = rank, free[rank]
    return start


def _neighbor_starts(
    schedule: Schedule, costs: Costs, *, transfer: float, transfer_ticks: int, specialised: bool
) -> tuple[dict[Action, float], list[tuple[float, float]], list[list[_Wait]]]:
    """When actions start, the stretches in which all ranks share ends of the pipe, and each rank's waits."""
    num_ranks = schedule.num_ranks
    ticks = assign_ticks(schedule, transfer_ticks)
    at = {(ticks[action], rank): action for rank, action in schedule.actions()}
    partners = _partners(schedule, ticks) if specialised else None
    shares = _shares_of_ends(ticks, costs, schedule.placement)
    start: dict[Action, float] = {}
    ends: list[tuple[float, float]] = []
    waits: list[list[_Wait]] = [[] for _ in range(num_ranks)]
    ended = [[0.0] * num_ranks for _ in range(transfer_ticks)]
    lasted = [[0.0] * num_ranks for _ in range(transfer_ticks)]
    for tick in range(1 + max(*ticks.values(), *shares)):
        own, others = ended[-1], ended[-transfer_ticks]
        travel = transfer if tick >= transfer_ticks else 0.0
        times = []
        for rank in range(num_ranks):
            neighbors = {(rank - 1) % num_ranks, (rank + 1) % num_ranks} - {rank}
            if partners is not None:
                neighbors = partners[tick - transfer_ticks, rank]
            times.append(max(own[rank], *(others[neighbor] + travel for neighbor in neighbors), 0.0))
            last = max(neighbors, key=others.__getitem__, default=rank)
            longer = lasted[-transfer_ticks][last] - lasted[-transfer_ticks][rank]
            there = others[last]
            arrived = there + (travel if neighbors else 0.0)
            waits[rank].append(_Wait(there - max(longer, 0.0), there, arrived))
        if tick in shares:
            together = max(times)
            ends.append((together, together + shares[tick]))
            times = [ends[-1][1]] * num_ranks
        took = [0.0] * num_ranks
        for rank in range(num_ranks):
            if action := at.get((tick, rank)):
                start[action] = times[rank]
                took[rank] = cost_of(action, costs)
                times[rank] += took[rank]
        ended, lasted = [*ended[1:], times], [*lasted[1:], took]
    return start, ends, waits


def _partners(schedule: Schedule, ticks: Mapping[Action, int]) -> dict[tuple[int, int], set[int]]:
    """With whom a rank exchanges what was computed in a tick: ``[tick, rank]``; both wait for each other."""
    partners: dict[tuple[int, int], set[int]] = defaultdict(set)
    for rank, action in schedule.actions():
        if message := sent_by(action, rank, schedule.placement):
            partners[ticks[action], rank].add(message.receiver)
            partners[ticks[action], message.receiver].add(rank)
    return partners


def _shares_of_ends(ticks: Mapping[Action, int], costs: Costs, placement: Placement) -> dict[int, float]:
    """The seconds that each rank spends at ends of the pipe at the start of a tick, where that is any."""
    shares: dict[int, float] = defaultdict(float)
    for action, tick in ticks.items():
        if action.kind is Kind.F:
            if action.stage == 0 and costs.embedding:
                shares[tick] += costs.embedding / placement.num_ranks
            if action.stage == placement.num_stages - 1 and costs.head:
                shares[tick + 1] += costs.head / placement.num_ranks
        elif action.kind in (Kind.B, Kind.BW) and action.stage == 0 and costs.embedding:
            shares[tick + 1] += costs.embedding / placement.num_ranks
    return shares


def _idle_stretches(
    schedule: Schedule,
    *,
    start: Mapping[Action, float],
    end: Mapping[Action, float],
    ends: Sequence[tuple[float, float]],
    waits: Sequence[Sequence[_Wait]],
    transfer: float,
    makespan: float,
) -> Iterator[Idle]:
    """A rank is idle first because an input of its next action is being computed, whatever it waits at."""
    placement = schedule.placement
    computed = {result(action): time for action, time in end.items()}
    for rank, order in enumerate(schedule.orders):
        free = 0.0
        shared, own_waits = deque(ends), deque(waits[rank])
        for action in order:
            foreign = [
                computed[need]
                for need in inputs(action, placement.num_stages)
                if placement.rank(need.stage, need.pipe) != rank
            ]
            ready = max(foreign, default=0.0)
            arrived = ready + (transfer if foreign else 0.0)
            while shared and shared[0][1] <= start[action]:
                since, until = shared.popleft()
                rest = [*_causes_of(own_waits, until=since), (since, Cause.ENDS)]
                yield from _idle(rank, free, since, ready=ready, arrived=arrived, rest=rest)
                free = until
            rest = [*_causes_of(own_waits, until=start[action]), (start[action], Cause.NEIGHBOR)]
            yield from _idle(rank, free, start[action], ready=ready, arrived=arrived, rest=rest)
            free = end[action]
        for since, until in shared:
            if since > free:
                yield Idle(rank, free, since, Cause.ENDS)
            free = until
        if makespan > free:
            yield Idle(rank, free, makespan, Cause.DRAIN)


def _idle(
    rank: int,
    free: float,
    until: float,
    *,
    ready: float,
    arrived: float,
    rest: Iterable[tuple[float, Cause]],
) -> Iterator[Idle]:
    """The idle time from ``free`` to ``until``; ``rest`` says when each further cause ends."""
    for mark, cause in ((ready, Cause.DEPENDENCY), (arrived, Cause.TRANSFER), *rest):
        mark = min(mark, until)
        if mark > free:
            yield Idle(rank, free, mark, cause)
            free = mark


def _causes_of(waits: deque[_Wait], *, until: float) -> Iterator[tuple[float, Cause]]:
    """When each part of the waits that are over by ``until`` ends, and its cause; takes them out."""
    while waits and waits[0].arrived <= until:
        wait = waits.popleft()
        yield wait.longer_from, Cause.NEIGHBOR
        yield wait.there, Cause.IMBALANCE
        yield wait.arrived, Cause.TRANSFER
