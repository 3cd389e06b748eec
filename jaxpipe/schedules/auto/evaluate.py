"""The times of an order, as ``simulate`` gives them, but of numbered actions and many times faster.

``heads`` are times from the start, ``tails`` times to the end, of the longest path through the order and the
messages; the makespan is the longest of both together (Adams, Balas and Zawack 1988, "The Shifting Bottleneck
Procedure", section 2).
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from jaxpipe.schedules.auto.problem import Orders, Problem


def makespan(problem: Problem, orders: Orders) -> float:
    """Seconds of the whole step, in the problem's model of waiting; infinite if it has no end."""
    if problem.timing.sync == "neighbor":
        return _neighbor_makespan(problem, orders)
    ends = heads(problem, orders)
    return max(ends) if min(ends) >= 0 else float("inf")


def heads(problem: Problem, orders: Orders) -> list[float]:
    """When each action ends if every message is its own; -1 where ranks wait for each other for ever."""
    return _longest_paths(
        problem,
        orders,
        needs=problem.source,
        feeds=problem.reader,
        cost=problem.cost,
        transfer=problem.timing.transfer,
    )


def tails(problem: Problem, orders: Orders) -> list[float]:
    """For each action the time from its start to the end of all that must follow it."""
    backwards = [order[::-1] for order in orders]
    return _longest_paths(
        problem,
        backwards,
        needs=problem.reader,
        feeds=problem.source,
        cost=problem.cost,
        transfer=problem.timing.transfer,
    )


def _longest_paths(
    problem: Problem,
    orders: Orders,
    *,
    needs: Sequence[int],
    feeds: Sequence[int],
    cost: Sequence[float],
    transfer: float,
) -> list[float]:
    """Each rank runs as far as it can, and wakes the one that waits for what it has done."""
    rank_of = problem.rank
    done = [-1.0] * len(cost)
    awaited = [False] * len(cost)
    position, free = [0] * len(orders), [0.0] * len(orders)
    runnable = list(range(len(orders)))
    while runnable:
        rank = runnable.pop()
        order, time = orders[rank], free[rank]
        for index in range(position[rank], len(order)):
            action = order[index]
            need = needs[action]
            if need >= 0:
                ready = done[need]
                if ready < 0:
                    awaited[need] = True
                    position[rank], free[rank] = index, time
                    break
                ready += transfer
                if ready > time:
                    time = ready
            time += cost[action]
            done[action] = time
            if awaited[action]:
                runnable.append(rank_of[feeds[action]])
        else:
            position[rank], free[rank] = len(order), time
    return done


def _neighbor_makespan(problem: Problem, orders: Orders) -> float:
    """The lowered program: ticks first, then the time of each tick, with the ends that all ranks share."""
    cost, num_ranks = problem.cost, problem.num_ranks
    transfer, transfer_ticks = problem.timing.transfer, problem.timing.transfer_ticks
    ticks = _ticks(problem, orders)
    if min(ticks) < 0:
        return float("inf")
    num_ticks = 1 + max(ticks[order[-1]] for order in orders if order)
    rows = [[0.0] * num_ranks for _ in range(num_ticks)]
    for rank, order in enumerate(orders):
        for action in order:
            rows[ticks[action]][rank] += cost[action]
    shares = _shares_of_ends(problem, ticks)
    rows += [[0.0] * num_ranks] * (max(shares, default=-1) + 1 - num_ticks)
    ended = [[0.0] * num_ranks for _ in range(transfer_ticks)]
    alone = num_ranks == 1
    for tick, row in enumerate(rows):
        own, others = ended[-1], ended[-transfer_ticks]
        travel = transfer if tick >= transfer_ticks else 0.0
        times = list(own)
        if not alone:
            for rank in range(num_ranks):
                latest = max(others[rank - 1], others[rank + 1 - num_ranks]) + travel
                if latest > times[rank]:
                    times[rank] = latest
        if tick in shares:
            times = [max(times) + shares[tick]] * num_ranks
        ended = [*ended[1:], [time + seconds for time, seconds in zip(times, row, strict=True)]]
    return max(ended[-1])


def _ticks(problem: Problem, orders: Orders) -> list[int]:
    """The tick of each action, as ``assign_ticks`` gives it; a fused W has that of its B."""
    cost, per_kind = [1.0] * len(problem.cost), problem.num_per_kind
    if problem.timing.fuse_backward:
        for order in orders:
            for action, following in pairwise(order):
                if per_kind <= action == following - per_kind:
                    cost[following] = 0.0
    ends = _longest_paths(
        problem,
        orders,
        needs=problem.source,
        feeds=problem.reader,
        cost=cost,
        transfer=problem.timing.transfer_ticks - 1.0,
    )
    return [int(end) - 1 if end >= 0 else -1 for end in ends]


def _shares_of_ends(problem: Problem, ticks: list[int]) -> dict[int, float]:
    """Seconds that all ranks spend together at ends of the pipe, before a tick's actions."""
    shares: dict[int, float] = defaultdict(float)
    head, embedding = (value / problem.num_ranks for value in (problem.costs.head, problem.costs.embedding))
    last, per_kind = problem.num_stages - 1, problem.num_per_kind
    for microbatch in range(problem.num_microbatches):
        if embedding:
            shares[ticks[microbatch]] += embedding
            shares[ticks[per_kind + microbatch] + 1] += embedding
        if head:
            shares[ticks[last * problem.num_microbatches + microbatch] + 1] += head
    return shares
