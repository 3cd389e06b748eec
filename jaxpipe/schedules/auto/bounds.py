"""Times that no order can beat, whatever it does.

A rank r can begin when the first microbatch has come to it, and some work is left on other ranks when it has
done its last B. In between:

work       all that r has to do
turn       until the first B can run on r, it runs nothing but F and R, and of F no more than it has room for
memory     each microbatch holds its activation on r at least until it has been to the last stage and back

path       all microbatches pass each stage one after another, and the last has still to come back from it
ticks      in the lowered program a path may change to a neighbour and back in every tick, and pays each
transfer
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from jaxpipe.schedules.actions import Kind
from jaxpipe.schedules.auto.memory import TOLERANCE, Memory, changes
from jaxpipe.schedules.auto.problem import Problem, as_tuple
from jaxpipe.schedules.costs import Costs, with_ends
from jaxpipe.schedules.placement import Placement


class Bound(NamedTuple):
    """At least ``seconds``, and why."""

    seconds: float
    reason: str


class _Way(NamedTuple):
    """What one microbatch meets in a pipe, without other microbatches.

    F, B, W, R: seconds of each stage, of R 0 where there is none. forth[stage]: from the start to that of its
    F; turn[stage]: from the end of its F to the start of its B; back[stage]: from the end of its B to the end
    of the first stage's W.
    """

    F: Sequence[float]
    B: Sequence[float]
    W: Sequence[float]
    R: Sequence[float]
    forth: Sequence[float]
    turn: Sequence[float]
    back: Sequence[float]
    num_microbatches: int


class _Share(NamedTuple):
    """What one rank has of one pipe; ``stages`` ascend."""

    way: _Way
    stages: tuple[int, ...]


def bound_of(problem: Problem, *, recompute: bool = False) -> Bound:
    """The best of the bounds for any order with the placement of the problem, which may have two pipes.

    recompute: of orders with R.

    In the lowered program ranks share the ends of the pipe, and nothing runs meanwhile. A message sent two
    ticks ahead travels on through one such time, so of its transfer only the rest adds to them.
    """
    timing, costs = problem.timing, problem.costs
    if timing.sync == "async":
        timed = with_ends(costs, problem.num_stages)
        return _bound(problem, timed, timing.transfer, recompute=recompute)
    per_microbatch = (costs.head + 2 * costs.embedding) / problem.num_ranks
    hidden = 0.0 if timing.transfer_ticks == 1 else per_microbatch * problem.placement.num_pipes
    apart = _bound(problem, costs, max(0.0, timing.transfer - hidden), recompute=recompute)
    shared = problem.num_microbatches * per_microbatch
    return max(
        Bound(apart.seconds + shared, apart.reason),
        _bound(problem, costs, timing.transfer, recompute=recompute),
        key=_seconds,
    )


def _bound(problem: Problem, costs: Costs, transfer: float, *, recompute: bool) -> Bound:
    """Without what ranks share."""
    placement, timing, num_microbatches = problem.placement, problem.timing, problem.num_microbatches
    ways = [
        _way(placement, pipe, num_microbatches, costs, transfer, recompute=recompute)
        for pipe in range(placement.num_pipes)
    ]
    shares = [
        [_Share(way, _stages(placement, pipe, rank)) for pipe, way in enumerate(ways)]
        for rank in range(placement.num_ranks)
    ]
    bounds = [_path_bound(way) for way in ways]
    for rank, own in enumerate(shares):
        bounds += _rank_bounds(
            rank, own, problem.memory, num_chunks=placement.num_chunks, num_pipes=placement.num_pipes
        )
    if timing.sync == "neighbor" and timing.transfer_ticks == 1 and placement.num_ranks > 1:
        num_kinds = (2 if timing.fuse_backward else 3) + recompute
        bounds.append(_tick_bound(shares, transfer, num_kinds=num_kinds))
    return max(bounds, key=_seconds)


def _seconds(bound: Bound) -> float:
    return bound.seconds


def _stages(placement: Placement, pipe: int, rank: int) -> tuple[int, ...]:
    return tuple(stage for stage, home in enumerate(placement.stage_ranks[pipe]) if home == rank)


def _way(
    placement: Placement,
    pipe: int,
    num_microbatches: int,
    costs: Costs,
    transfer: float,
    *,
    recompute: bool = False,
) -> _Way:
    num_stages, ranks = placement.num_stages, placement.stage_ranks[pipe]
    each = (costs.F, costs.B, costs.W, costs.R if recompute else 0.0)
    F, B, W, R = (as_tuple(value, num_stages) for value in each)
    hops = [transfer if here != there else 0.0 for here, there in pairwise(ranks)]
    forth, turn, back = [0.0], [R[-1]], [W[0]]
    for stage, hop in enumerate(hops):
        forth.append(forth[-1] + F[stage] + hop)
        back.append(back[-1] + B[stage] + hop)
    for stage in reversed(range(num_stages - 1)):
        turn.append(max(turn[-1] + 2 * hops[stage] + F[stage + 1] + B[stage + 1], R[stage]))
    return _Way(F, B, W, R, forth, turn[::-1], back, num_microbatches // placement.num_pipes)


def _path_bound(way: _Way) -> Bound:
    """For each stage, all of its F, or all of its B, on the way of one microbatch."""
    seconds = max(
        forth + F + turn + B + back + (way.num_microbatches - 1) * max(F, B)
        for forth, F, turn, B, back in zip(way.forth, way.F, way.turn, way.B, way.back, strict=True)
    )
    return Bound(seconds, "path: all microbatches through one stage, and one of them through all")


def _rank_bounds(
    rank: int, shares: list[_Share], memory: Memory | None, *, num_chunks: int, num_pipes: int
) -> Iterator[Bound]:
    again = sum(way.num_microbatches * way.R[stage] for way, stages in shares for stage in stages)
    work = again + sum(
        way.num_microbatches * (way.F[stage] + way.B[stage] + way.W[stage])
        for way, stages in shares
        for stage in stages
    )
    start = min(way.forth[stages[0]] for way, stages in shares)
    turn = min(way.forth[stages[-1]] + way.F[stages[-1]] + way.turn[stages[-1]] for way, stages in shares)
    back = min(way.back[stages[0]] for way, stages in shares)
    forwards, weights = (
        sorted(
            (
                times[stage]
                for way, stages in shares
                for times in (getattr(way, kind),)
                for stage in stages
                for _ in range(way.num_microbatches)
            ),
            reverse=True,
        )
        for kind in ("F", "W")
    )
    if memory is not None:
        room = (memory.limit - memory.weights * num_pipes) * (1 + TOLERANCE)
        change = changes(memory, num_chunks)
        forwards = forwards[: int(room / change[Kind.F])]
        if change[Kind.W]:
            weights = weights[: int(room / -change[Kind.W])]
        held = _area(shares, change)
        if change[Kind.B] == 0:
            room = int(room / change[Kind.F]) * change[Kind.F]
        yield Bound(start + held / room, f"memory: what rank {rank} holds, and for how long at least")
    ahead = min(turn - start, sum(forwards) + again)
    after = max(0.0, back - sum(weights))
    reason = f"work: all that rank {rank} does, after its first microbatch has come"
    if ahead < (turn - start) * (1 - TOLERANCE):
        reason = f"turn: rank {rank} has room for {len(forwards)} F until its first B"
    yield Bound(turn - ahead + work + after, reason)


def least_period(problem: Problem) -> float:
    """Seconds from microbatch to microbatch in the long run: the work of a rank, or what memory allows."""
    m, per_kind, (activation, _, freed) = problem.num_microbatches, problem.num_per_kind, problem.change
    F, B, W = (problem.cost[kind * per_kind : (kind + 1) * per_kind : m] for kind in range(3))
    way = _way(problem.placement, 0, 1, Costs(tuple(F), tuple(B), tuple(W)), problem.timing.transfer)
    change = {Kind.F: activation, Kind.W: freed}
    held = (_area([_Share(way, tuple(stages))], change) for stages in problem.stages)
    work = (sum(way.F[stage] + way.B[stage] + way.W[stage] for stage in stages) for stages in problem.stages)
    return max(*work, *(area / problem.limit for area in held))


def _area(shares: list[_Share], change: dict[Kind, float]) -> float:
    """Memory times seconds, from F until B and from B until W, of all microbatches."""
    return sum(
        way.num_microbatches
        * (change[Kind.F] * (way.F[stage] + way.turn[stage] + way.B[stage]) - change[Kind.W] * way.W[stage])
        for way, stages in shares
        for stage in stages
    )


def _tick_bound(shares: list[list[_Share]], transfer: float, *, num_kinds: int) -> Bound:
    """Half the work of two neighbours, and a transfer after every tick but the last."""
    work, ticks = [], []
    for own in shares:
        counts = [(way, stage) for way, stages in own for stage in stages]
        work.append(
            sum(way.num_microbatches * (way.F[s] + way.B[s] + way.W[s] + way.R[s]) for way, s in counts)
        )
        ticks.append(num_kinds * sum(way.num_microbatches for way, _ in counts))
    both = max(here + there for here, there in zip(work, [*work[1:], work[0]], strict=True))
    return Bound(both / 2 + (max(ticks) - 1) * transfer, "ticks: each costs a transfer to a neighbour")
