"""From wishes to an order: each rank, whenever it is free, takes what is wanted first of what is ready.

    wish[action]    the time at which F or B would run in an ideal world; small comes first
    W               run where nothing else can, or where memory is needed

An F may come before its turn only if the rank never holds more than its limit until that turn would have come
(Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", section 3), so what fits in the order of the
wishes never gets stuck. Microbatches of a stage and kind keep their order. Patience lets a rank wait
instead for something that is wanted more and about to arrive.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from jaxpipe.schedules.auto.memory import TOLERANCE
from jaxpipe.schedules.auto.problem import NOTHING, Orders, Problem

NEVER = float("inf")


class Manner(NamedTuple):
    """How a rank chooses.

    patience, weight_patience: how long to wait for what is wanted more, as a part of the time that another F
    or B, or a W, would take instead. reserving: F may come before its turn as long as there is room for the
    same microbatch on the rank's further chunks, whatever the plan is; that never gets stuck either.
    """

    patience: float
    weight_patience: float
    reserving: bool = False


@dataclass
class _State:
    """Where a pass is. ``plan[rank]`` has its F and B by wish, ``turn`` their places in it.

    next_f, next_b, next_w: the next microbatch of each stage; free, held: of each rank; head: the first in
    the plan that has not run; owed: how many W are due.
    """

    problem: Problem
    wish: Sequence[float]
    cost: Sequence[float]
    transfer: float
    limit: float
    plan: Orders
    turn: list[int]
    end: list[float]
    orders: Orders
    next_f: list[int]
    next_b: list[int]
    next_w: list[int]
    free: list[float]
    held: list[float]
    owed: list[int]
    head: list[int]
    events: list[tuple[float, int]] = field(default_factory=list)


def list_pass(
    problem: Problem,
    wish: Sequence[float],
    manner: Manner,
    *,
    in_ticks: bool = False,
) -> Orders | None:
    """The order that comes of these wishes, or None if ranks get stuck for want of memory.

    wish: for each F and B, with ascending microbatches. in_ticks: run in ticks of the lowered program, in
    which all actions are equal, instead of seconds.
    """
    state = _begin(problem, wish, in_ticks=in_ticks)
    events, free = state.events, state.free
    while events:
        now, rank = heapq.heappop(events)
        if free[rank] > now:
            continue
        action, until = _choose(state, rank, now, manner)
        if until < NEVER:
            heapq.heappush(events, (until, rank))
        elif action != NOTHING:
            _run(state, rank, now, action)
    if sum(map(len, state.orders)) < len(problem.cost):
        return None
    return state.orders


def in_wished_order(problem: Problem, wish: Sequence[float]) -> Orders | None:
    """Each rank's actions, W too, sorted by wish; None if that needs too much memory."""
    orders: Orders = [[] for _ in problem.stages]
    for action in sorted(range(len(wish)), key=lambda action: (wish[action], action)):
        orders[problem.rank[action]].append(action)
    for order in orders:
        held = accumulate(problem.change[action // problem.num_per_kind] for action in order)
        if max(held, default=0.0) > problem.limit * (1 + TOLERANCE):
            return None
    return orders


def _begin(problem: Problem, wish: Sequence[float], *, in_ticks: bool) -> _State:
    num_stages, num_ranks = problem.num_stages, problem.num_ranks
    num_microbatches, per_kind = problem.num_microbatches, problem.num_per_kind
    plan, turn = [], [0] * (2 * per_kind)
    for stages in problem.stages:
        queues = [queue for stage in stages for queue in (stage, num_stages + stage)]
        own = [a for q in queues for a in range(q * num_microbatches, (q + 1) * num_microbatches)]
        own.sort(key=lambda action: (wish[action], action < per_kind))
        for place, action in enumerate(own):
            turn[action] = place
        plan.append(own)
    return _State(
        problem=problem,
        wish=wish,
        cost=[1.0] * len(problem.cost) if in_ticks else problem.cost,
        transfer=problem.timing.transfer_ticks - 1.0 if in_ticks else problem.timing.transfer,
        limit=problem.limit * (1 + TOLERANCE),
        plan=plan,
        turn=turn,
        end=[NEVER] * len(problem.cost),
        orders=[[] for _ in range(num_ranks)],
        next_f=[0] * num_stages,
        next_b=[0] * num_stages,
        next_w=[0] * num_stages,
        free=[0.0] * num_ranks,
        held=[0.0] * num_ranks,
        owed=[0] * num_ranks,
        head=[0] * num_ranks,
        events=[(0.0, rank) for rank in range(num_ranks)],
    )


def _choose(state: _State, rank: int, now: float, manner: Manner) -> tuple[int, float]:
    """What to run now, or until when to wait; neither if nothing can run before something arrives."""
    problem, wish, end, limit = state.problem, state.wish, state.end, state.limit
    source, m, per_kind = problem.source, problem.num_microbatches, problem.num_per_kind
    last, held, next_f, next_b = problem.num_stages - 1, state.held[rank], state.next_f, state.next_b
    grows = problem.change[1] > 0
    best, best_wish, blocked_wish = NOTHING, NEVER, NEVER
    weight, weight_wish = NOTHING, NEVER
    arrivals = []
    for stage in problem.stages[rank]:
        microbatch = next_b[stage]
        if microbatch < next_f[stage]:
            action = per_kind + stage * m + microbatch
            if source[action] >= 0:
                ready = end[source[action]] + state.transfer
            else:
                ready = now if stage == last or next_b[stage + 1] > microbatch else NEVER
            wanted = wish[action]
            if ready > now:
                if ready < NEVER:
                    arrivals.append((ready, wanted))
            elif grows and held + problem.change[1] > limit:
                blocked_wish = min(blocked_wish, wanted)
            elif wanted < best_wish:
                best, best_wish = action, wanted
        microbatch = next_f[stage]
        if microbatch < m:
            action = stage * m + microbatch
            if source[action] >= 0:
                ready = end[source[action]] + state.transfer
            else:
                ready = now if stage == 0 or next_f[stage - 1] > microbatch else NEVER
            if ready < NEVER:
                room = _safe_room(state, rank, action) if manner.reserving else _room(state, rank, action)
                if room > 0 and ready > now:
                    arrivals.append((ready, wish[action]))
                elif room > 0 and wish[action] < best_wish:
                    best, best_wish = action, wish[action]
                elif room < 0 and ready <= now and wish[action] < blocked_wish:
                    blocked_wish = wish[action]
        microbatch = state.next_w[stage]
        if microbatch < next_b[stage]:
            wanted = wish[per_kind + stage * m + microbatch]
            if wanted < weight_wish:
                weight, weight_wish = 2 * per_kind + stage * m + microbatch, wanted
    if weight != NOTHING and (best == NOTHING or blocked_wish < best_wish):
        best, best_wish = weight, blocked_wish  # it makes room for what is wanted more
    if best == NOTHING or not arrivals:
        return best, NEVER
    patience = manner.weight_patience if best >= 2 * per_kind else manner.patience
    soonest = min((ready for ready, wanted in arrivals if wanted < best_wish), default=NEVER)
    return (NOTHING, soonest) if soonest < now + patience * state.cost[best] else (best, NEVER)


def _room(state: _State, rank: int, action: int) -> int:
    """For an F: 1 if it may run, -1 if it could after a W, 0 if it must wait for its turn."""
    problem, limit = state.problem, state.limit
    if limit == NEVER:
        return 1
    plan, per_kind, first = state.plan[rank], problem.num_per_kind, state.head[rank]
    end = state.end
    while end[plan[first]] < NEVER:
        first += 1
    state.head[rank] = first
    activation, turn = problem.change[0], state.turn[action]
    if turn > first:
        held = peak = state.held[rank] + problem.change[2] * state.owed[rank]
        for place in range(first, turn):
            other = plan[place]
            if end[other] == NEVER:
                held += activation if other < per_kind else -activation
                if held > peak:
                    peak = held
        if peak + activation > limit:
            return 0
    elif state.held[rank] + activation > limit:
        return -1
    return 1 if state.held[rank] + activation <= limit else 0


def _safe_room(state: _State, rank: int, action: int) -> int:
    """As ``_room``, whatever the plan is: if the rank can end one microbatch after the other afterwards.

    Each has what those before it free, as in the banker's algorithm (Dijkstra 1965). Room is kept for a B
    that needs more than its F.
    """
    problem, m = state.problem, state.problem.num_microbatches
    stages, own = problem.stages[rank], action // m
    activation, more, freed = problem.change
    room = state.limit - state.held[rank] - activation - max(0.0, more)
    for microbatch in range(min(state.next_w[stage] for stage in stages), action % m + 1):
        if room >= len(stages) * activation:
            break
        for stage in stages:
            begun = stage == own or state.next_f[stage] > microbatch
            if not begun:
                room -= activation
        if room < 0:
            return -1
        for stage in stages:
            if state.next_w[stage] <= microbatch:
                room += activation if state.next_b[stage] <= microbatch else -freed
    return 1 if room >= 0 else -1


def _run(state: _State, rank: int, now: float, action: int) -> None:
    problem, m = state.problem, state.problem.num_microbatches
    end = now + state.cost[action]
    state.end[action] = state.free[rank] = end
    state.orders[rank].append(action)
    kind, stage = divmod(action // m, problem.num_stages)
    state.held[rank] += problem.change[kind]
    if kind == 0:
        state.next_f[stage] += 1
    elif kind == 1:
        state.next_b[stage] += 1
        state.owed[rank] += 1
    else:
        state.next_w[stage] += 1
        state.owed[rank] -= 1
    heapq.heappush(state.events, (end, rank))
    if (reader := problem.reader[action]) >= 0:
        heapq.heappush(state.events, (end + state.transfer, problem.rank[reader]))
