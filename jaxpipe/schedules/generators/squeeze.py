"""From a rough order to a dense one: ranks do not wait while they have something else to do.

``squeeze`` times an order at unit costs, and changes it where a rank would be idle: there the rank takes the
first of its later actions that is ready, as long as it never holds more than its limit. So
controllable-memory schedules fill warm-up and drain, where the repeated pattern of their building block
leaves holes (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", section 3).

Microbatches of one stage and kind keep their order, so gradients are summed as before.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.costs import UNIT_COSTS, cost_of
from jaxpipe.schedules.dependencies import inputs, result
from jaxpipe.schedules.schedule import Schedule

_HELD = {Kind.F: 1, Kind.B: 0, Kind.W: -1, Kind.BW: -1}
"""What each kind adds to the activations that a rank holds until W."""


@dataclass
class _Rank:
    """What a rank has still to do, in the order given, and what it has done.

    A queue is the actions of one kind, stage and pipe, which keep their order: ``left`` counts those of each
    that are left.
    """

    later: list[Action]
    order: list[Action] = field(default_factory=list)
    held: int = 0
    free_at: float = 0.0

    def __post_init__(self) -> None:
        self.left = Counter(map(_queue, self.later))
        self.num_forwards = sum(action.kind is Kind.F for action in self.later)
        self.num_stages = sum(kind is Kind.F for kind, *_ in self.left)


def squeeze(
    schedule: Schedule, *, limits: Sequence[int], overtake: bool = True, weights_wait: bool = True
) -> Schedule | None:
    """The schedule with its holes filled, or None if it does not fit the limits.

    limits: for each rank the stage activations that it may hold until W.
    overtake: F and B may go before others too; otherwise only W move.
    weights_wait: W run only where nothing else can, or where memory is needed. Otherwise they keep their
        places, which leaves the steady pattern as it is, until the last F are due.
    """
    ranks = [_Rank(list(order)) for order in schedule.orders]
    num_stages = schedule.placement.num_stages
    done_at: dict[Action, float] = {}
    times = [0.0]

    def is_ready(now: float, action: Action) -> bool:
        return all(done_at.get(need, now + 1) <= now for need in inputs(action, num_stages))

    while times:
        now = heapq.heappop(times)
        while times and times[0] == now:
            heapq.heappop(times)
        for state, limit in zip(ranks, limits, strict=True):
            if state.free_at > now:
                continue
            wait = weights_wait or state.num_forwards <= state.num_stages
            action = _choose(
                state, limit=limit, overtake=overtake, weights_wait=wait, is_ready=partial(is_ready, now)
            )
            if action is not None:
                _take(state, action)
                state.free_at = done_at[result(action)] = now + cost_of(action, UNIT_COSTS)
                heapq.heappush(times, state.free_at)
    if any(state.later for state in ranks):
        return None
    return replace(schedule, orders=tuple(tuple(state.order) for state in ranks))


def _choose(
    state: _Rank, *, limit: int, overtake: bool, weights_wait: bool, is_ready: Callable[[Action], bool]
) -> Action | None:
    """What the rank does now, if anything."""
    held = peak = state.held
    is_next = True  # the first that is no W
    seen: set[tuple[Kind, int, int]] = set()
    for action in state.later:
        queue = _queue(action)
        if queue not in seen and is_ready(action) and not (weights_wait and action.kind is Kind.W):
            if action.kind is not Kind.F:
                return action
            # it adds to all that is held until its own turn would have come
            if state.held < limit and (is_next or peak < limit):
                return action
            if weights_wait and is_next and (makes_room := _first_weight(state, is_ready)):
                return makes_room
        seen.add(queue)
        held += _HELD[action.kind]
        peak = max(peak, held)
        is_next = is_next and action.kind is Kind.W
        if len(seen) == len(state.left) or not (overtake or is_next):
            break
    return _first_weight(state, is_ready) if weights_wait or not overtake else None


def _first_weight(state: _Rank, is_ready: Callable[[Action], bool]) -> Action | None:
    """The first W that could run; of each stage only the first that is left can."""
    waiting = {queue for queue in state.left if queue[0] is Kind.W}
    for action in state.later:
        if not waiting:
            break
        if _queue(action) in waiting:
            if is_ready(action):
                return action
            waiting.remove(_queue(action))
    return None


def _queue(action: Action) -> tuple[Kind, int, int]:
    return action.kind, action.stage, action.pipe


def _take(state: _Rank, action: Action) -> None:
    state.order.append(action)
    state.later.remove(action)
    state.left[_queue(action)] -= 1
    if not state.left[_queue(action)]:
        del state.left[_queue(action)]
    state.num_forwards -= action.kind is Kind.F
    state.held += _HELD[action.kind]
