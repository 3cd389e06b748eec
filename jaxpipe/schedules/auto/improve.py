"""Small changes to an order, each of which could make it shorter.

The makespan is the longest path through the order. It can only fall if two neighbours of a rank that both lie
on it change places, and such a swap never makes a circle (Van Laarhoven, Aarts and Lenstra 1992, "Job Shop
Scheduling by Simulated Annealing"). A tabu search: take the swap that promises most, even if it makes things
worse, and do not swap back for some time (Nowicki and Smutnicki 1996, "A Fast Taboo Search Algorithm for the
Job Shop Problem").
"""

import random
from itertools import pairwise
from typing import NamedTuple

from jaxpipe.schedules.auto.evaluate import heads, makespan, tails
from jaxpipe.schedules.auto.memory import TOLERANCE
from jaxpipe.schedules.auto.problem import Orders, Problem

TENURE = 8, 16
"""The least and the most swaps for which one may not be undone."""

PATIENCE = 300
"""Swaps without success after which the search goes back to the best order."""


class _Swap(NamedTuple):
    """Of the actions at ``place`` and the next of a rank; ``promise`` is at most the makespan after it."""

    promise: float
    tie: float
    rank: int
    place: int


def climb(problem: Problem, orders: Orders, *, num_swaps: int, goal: float) -> Orders:
    """As ``improve`` in any model: swaps of neighbours at random, kept unless they make things worse.

    In the lowered program every action may hold up a neighbour, so there is no longest path to look at.
    """
    chance = random.Random(0)
    orders = [list(order) for order in orders]
    shortest = makespan(problem, orders)
    for _ in range(num_swaps):
        if shortest <= goal * (1 + TOLERANCE):
            break
        order = chance.choice(orders)
        if len(order) < 2:
            continue
        place = chance.randrange(len(order) - 1)
        first, second = order[place : place + 2]
        if _must_follow(problem, first, second) or not _has_room(problem, order, place):
            continue
        order[place : place + 2] = second, first
        seconds = makespan(problem, orders)
        if seconds <= shortest:
            shortest = seconds
        else:
            order[place : place + 2] = first, second
    return orders


class _State(NamedTuple):
    """An order, the place of each action in its rank's, and when each ends."""

    orders: Orders
    place: list[int]
    end: list[float]


def improve(problem: Problem, orders: Orders, *, num_swaps: int, goal: float) -> Orders:
    """The best order found with so many swaps, in the async model; it stops at ``goal`` seconds."""
    chance = random.Random(0)
    state = _start(problem, orders)
    best, shortest = state, max(state.end)
    forbidden: dict[tuple[int, int], int] = {}
    since = 0
    for turn in range(num_swaps):
        if shortest <= goal * (1 + TOLERANCE):
            break
        swaps = _swaps(problem, state, chance)
        allowed = [
            swap for swap in swaps if swap.promise < shortest or forbidden.get(_pair(state, swap), -1) < turn
        ]
        if not allowed or turn - since > PATIENCE:
            if not swaps:
                break
            state, since = _start(problem, best.orders), turn
            forbidden.clear()
            continue
        swap = min(allowed)
        forbidden[_pair(state, swap)[::-1]] = turn + chance.randint(*TENURE)
        state = _swapped(problem, state, swap)
        if (seconds := max(state.end)) < shortest * (1 - TOLERANCE):
            best, shortest, since = _start(problem, state.orders), seconds, turn
    return best.orders


def _start(problem: Problem, orders: Orders) -> _State:
    orders = [list(order) for order in orders]
    place = [0] * len(problem.cost)
    for order in orders:
        for index, action in enumerate(order):
            place[action] = index
    return _State(orders, place, heads(problem, orders))


def _pair(state: _State, swap: _Swap) -> tuple[int, int]:
    order = state.orders[swap.rank]
    return order[swap.place], order[swap.place + 1]


def _swapped(problem: Problem, state: _State, swap: _Swap) -> _State:
    """The lists of ``state`` are used again."""
    first, second = _pair(state, swap)
    state.orders[swap.rank][swap.place : swap.place + 2] = second, first
    state.place[first], state.place[second] = swap.place + 1, swap.place
    return state._replace(end=heads(problem, state.orders))


def _swaps(problem: Problem, state: _State, chance: random.Random) -> list[_Swap]:
    """The swaps on one longest path."""
    rest = tails(problem, state.orders)
    path = _longest_path(problem, state, chance)
    swaps = []
    for first, second in pairwise(path):
        rank = problem.rank[first]
        if problem.rank[second] == rank and not _must_follow(problem, first, second):
            place = state.place[first]
            if _has_room(problem, state.orders[rank], place):
                promise = _promise(problem, state, rest, rank=rank, place=place)
                swaps.append(_Swap(promise, chance.random(), rank, place))
    return swaps


def _longest_path(problem: Problem, state: _State, chance: random.Random) -> list[int]:
    """One of them, at random, from start to end."""
    end, cost, transfer = state.end, problem.cost, problem.timing.transfer
    longest = max(end)
    close = TOLERANCE * longest
    action = chance.choice(
        [order[-1] for order in state.orders if order and end[order[-1]] >= longest - close]
    )
    path = [action]
    while (start := end[action] - cost[action]) > close:
        causes = []
        if (place := state.place[action]) > 0:
            before = state.orders[problem.rank[action]][place - 1]
            if end[before] >= start - close:
                causes.append(before)
        if (source := problem.source[action]) >= 0 and end[source] + transfer >= start - close:
            causes.append(source)
        action = chance.choice(causes)
        path.append(action)
    return path[::-1]


def _must_follow(problem: Problem, first: int, second: int) -> bool:
    """Whether ``second`` needs ``first`` on their rank, or is the next microbatch of its stage and kind."""
    (queue, microbatch), (next_queue, next_microbatch) = (
        divmod(action, problem.num_microbatches) for action in (first, second)
    )
    if queue == next_queue:
        return True
    kind, stage = divmod(queue, problem.num_stages)
    next_kind, next_stage = divmod(next_queue, problem.num_stages)
    if microbatch != next_microbatch:
        return False
    if kind == next_kind:
        return next_stage == stage + (1, -1, 0)[kind]
    return stage == next_stage and kind < next_kind


def _has_room(problem: Problem, order: list[int], place: int) -> bool:
    """Whether the rank stays within its limit if the actions at ``place`` and after it change places."""
    change, per_kind = problem.change, problem.num_per_kind
    first, second = (change[action // per_kind] for action in order[place : place + 2])
    if second <= first or problem.limit == float("inf"):
        return True
    held = sum(change[action // per_kind] for action in order[:place])
    return held + second <= problem.limit * (1 + TOLERANCE)


def _promise(problem: Problem, state: _State, rest: list[float], *, rank: int, place: int) -> float:
    """The longest path through the two actions after the swap, if nothing before them changes."""
    cost, source, reader, transfer = problem.cost, problem.source, problem.reader, problem.timing.transfer
    order, end = state.orders[rank], state.end
    first, second = order[place], order[place + 1]
    second_end = end[order[place - 1]] if place else 0.0
    if (need := source[second]) >= 0:
        second_end = max(second_end, end[need] + transfer)
    first_end = second_end = second_end + cost[second]
    if (need := source[first]) >= 0:
        first_end = max(first_end, end[need] + transfer)
    after = rest[order[place + 2]] if place + 2 < len(order) else 0.0
    if (fed := reader[first]) >= 0:
        after = max(after, rest[fed] + transfer)
    from_first = cost[first] + after
    from_second = max(from_first, rest[fed] + transfer) if (fed := reader[second]) >= 0 else from_first
    return max(second_end + from_second, first_end + from_first)
