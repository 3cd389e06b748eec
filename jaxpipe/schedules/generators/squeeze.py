"""From a rough order to a dense one: ranks do not wait while they have something else to do.

``squeeze`` times an order, and changes it where a rank would be idle: there the rank takes the first of its
later actions that is ready, as long as it never holds more than its limit. W run where nothing else can, or
where memory is needed. So controllable-memory schedules fill warm-up and drain, where the repeated pattern of
their building block leaves holes (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", section
3).

Microbatches of one stage and kind keep their order, so gradients are summed as before.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.costs import UNIT_COSTS, Costs, cost_of
from jaxpipe.schedules.dependencies import inputs, result
from jaxpipe.schedules.schedule import Schedule


@dataclass
class _Rank:
    """What a rank has still to do, and what it has done.

    ``later`` are its F, B and BW in the order given; ``owed`` the W of the B that it has run.
    """

    later: list[Action]
    owed: list[Action] = field(default_factory=list)
    order: list[Action] = field(default_factory=list)
    held: int = 0
    free_at: float = 0.0
    num_queues: int = 0

    def __post_init__(self) -> None:
        self.num_queues = len({(action.kind, action.stage, action.pipe) for action in self.later})


def squeeze(
    schedule: Schedule,
    *,
    limits: Sequence[int],
    overtake: bool = True,
    costs: Costs = UNIT_COSTS,
    transfer: float = 0.0,
) -> Schedule | None:
    """The schedule with its holes filled, given what actions cost; or None if it does not fit the limits.

    limits: for each rank the stage activations that it may hold until W.
    overtake: F and B may go before others too; otherwise only W move.
    """
    ranks = [_Rank([a for a in order if a.kind is not Kind.W]) for order in schedule.orders]
    placement = schedule.placement
    ready_at: dict[Action, tuple[int, float]] = {}
    times = [0.0]

    def is_ready(rank: int, now: float, action: Action) -> bool:
        for need in inputs(action, placement.num_stages):
            sender, time = ready_at.get(need, (rank, now + 1.0))
            if time + (transfer if sender != rank else 0.0) > now:
                return False
        return True

    while times:
        now = heapq.heappop(times)
        while times and times[0] == now:
            heapq.heappop(times)
        for rank, state in enumerate(ranks):
            if state.free_at > now:
                continue
            action = _choose(
                state, limit=limits[rank], overtake=overtake, is_ready=partial(is_ready, rank, now)
            )
            if action is None:
                continue
            _take(state, action)
            state.free_at = now + cost_of(action, costs)
            ready_at[result(action)] = rank, state.free_at
            heapq.heappush(times, state.free_at)
            if transfer:
                heapq.heappush(times, state.free_at + transfer)
    if any(state.later or state.owed for state in ranks):
        return None
    return replace(schedule, orders=tuple(tuple(state.order) for state in ranks))


def _choose(state: _Rank, *, limit: int, overtake: bool, is_ready: Callable[[Action], bool]) -> Action | None:
    """What the rank does now, if anything."""
    held = peak = state.held - len(state.owed)
    seen: set[tuple[Kind, int, int]] = set()
    for index, action in enumerate(state.later):
        queue = action.kind, action.stage, action.pipe
        if queue not in seen and is_ready(action):
            if action.kind is not Kind.F:
                return action
            # it adds to all that is held until its own turn would have come
            if state.held < limit and (index == 0 or peak < limit):
                return action
            if index == 0 and state.owed:
                break  # a W makes room
        if not overtake or len(seen) == state.num_queues:
            break
        seen.add(queue)
        held += 1 if action.kind is Kind.F else -1
        peak = max(peak, held)
    return state.owed[0] if state.owed else None


def _take(state: _Rank, action: Action) -> None:
    state.order.append(action)
    if action.kind is Kind.W:
        state.owed.remove(action)
    else:
        state.later.remove(action)
    if action.kind is Kind.B:
        state.owed.append(action._replace(kind=Kind.W))
    state.held += {Kind.F: 1, Kind.B: 0, Kind.W: -1, Kind.BW: -1}[action.kind]
