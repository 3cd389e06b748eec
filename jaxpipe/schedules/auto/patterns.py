"""Repeated patterns: times for one microbatch such that the next can follow every ``period`` seconds.

As modulo scheduling does for loops (Rau 1994, "Iterative Modulo Scheduling"): each rank is a clock of one
period, on which every action of a microbatch has its place, and no two overlap. The microbatch goes forward
through the stages and back, at each at the earliest places that leave room for the rest. Of all half-built
patterns the quickest are kept, since what is soon over holds memory for a short time. Patterns of unit costs
are the building blocks of "Pipeline Parallelism with Controllable Memory" (Qi et al. 2024); here costs are
what they are.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxpipe.schedules.auto.problem import Problem

CLOSE = 1e-7
"""Of a period: two times so near are one."""


class Pattern(NamedTuple):
    """``start[kind][stage]`` of microbatch 0, kinds F, B and W; microbatch k comes k periods later."""

    period: float
    start: tuple[tuple[float, ...], ...]


class _Partial(NamedTuple):
    """``clocks[rank]`` has ``(place, length)`` of what is placed; the last of ``starts`` ends at ``end``."""

    end: float
    starts: tuple[float, ...]
    clocks: tuple[tuple[tuple[float, float], ...], ...]


def wishes(pattern: Pattern, num_microbatches: int) -> list[float]:
    """The times of all actions of all microbatches, by their numbers."""
    return [
        time + pattern.period * microbatch
        for times in pattern.start
        for time in times
        for microbatch in range(num_microbatches)
    ]


def find_patterns(
    problem: Problem,
    *,
    period: float,
    in_ticks: bool = False,
    kinds: str = "",
    num_kept: int = 16,
    num_places: int = 3,
) -> list[Pattern]:
    """Patterns of this period; those that fit the memory first, and then the quickest.

    in_ticks: with all actions one tick long. kinds: then the kind of action that belongs in each tick of the
    period, such as FBW, with X for either of F and B; ranks that do the same at the same time do not wait for
    each other. num_kept, num_places: how many half-built patterns to keep, and how many places to try for
    each action.
    """
    num_stages, ranks = problem.num_stages, problem.placement.stage_ranks[0]
    lengths = [[1.0] * num_stages] * 3 if in_ticks else _lengths(problem)
    hop = problem.timing.transfer_ticks - 1.0 if in_ticks else problem.timing.transfer
    left = [[length[stage] for stage in stages for length in lengths] for stages in problem.stages]
    partials = [_Partial(0.0, (), ((),) * problem.num_ranks)]
    before = -1
    for kind, stage in [(0, s) for s in range(num_stages)] + [(1, s) for s in reversed(range(num_stages))]:
        rank, length = ranks[stage], lengths[kind][stage]
        left[rank].remove(length)
        rest = tuple(sorted(left[rank], reverse=True))
        grown = []
        for partial in partials:
            earliest = partial.end + (hop if before not in (-1, rank) else 0.0)
            places = _places(partial.clocks[rank], earliest, length, rest=rest, period=period)
            if kinds:
                places = (at for at in places if "FB"[kind] in _CYCLE_LETTERS[kinds[int(at) % len(kinds)]])
            for start in _first(places, num_places):
                clock = (*partial.clocks[rank], (start % period, length))
                clocks = (*partial.clocks[:rank], clock, *partial.clocks[rank + 1 :])
                grown.append(_Partial(start + length, (*partial.starts, start), clocks))
        partials = _best(grown, num_kept, period)
        before = rank
    patterns = [_with_weights(problem, partial, lengths, period) for partial in partials]
    return sorted(patterns, key=lambda pattern: max(problem.limit, _peak(problem, pattern, lengths[2])))


def _peak(problem: Problem, pattern: Pattern, weight_lengths: Sequence[float]) -> float:
    """What the fullest rank holds when the pattern is repeated without end, with all held until W."""
    (forward, _, weight), period = pattern.start, pattern.period
    activation = max(problem.change[0], -problem.change[2])

    def count(stage: int, time: float) -> int:
        begun = math.floor((time - forward[stage]) / period + CLOSE)
        ended = math.floor((time - weight[stage] - weight_lengths[stage]) / period + CLOSE)
        return begun - ended

    return activation * max(
        sum(count(stage, forward[begin]) for stage in stages) for stages in problem.stages for begin in stages
    )


def _with_weights(
    problem: Problem, partial: _Partial, lengths: Sequence[Sequence[float]], period: float
) -> Pattern:
    """Each W in the first place after its B that leaves room for the others."""
    num_stages = problem.num_stages
    forward, backward = partial.starts[:num_stages], partial.starts[: num_stages - 1 : -1]
    weights = [0.0] * num_stages
    for clock, stages in zip(partial.clocks, problem.stages, strict=True):
        due = sorted(stages, key=lambda stage: backward[stage])
        for index, stage in enumerate(due):
            rest = tuple(sorted((lengths[2][other] for other in due[index + 1 :]), reverse=True))
            ready, length = backward[stage] + lengths[1][stage], lengths[2][stage]
            weights[stage] = next(_places(clock, ready, length, rest=rest, period=period), ready)
            clock = (*clock, (weights[stage] % period, length))
    return Pattern(period, (forward, backward, tuple(weights)))


_CYCLE_LETTERS = {"F": "F", "B": "B", "W": "W", "X": "FB"}
"""Kinds that may run in a tick of a cycle."""


def _lengths(problem: Problem) -> list[list[float]]:
    m, per_kind = problem.num_microbatches, problem.num_per_kind
    return [list(problem.cost[kind * per_kind : (kind + 1) * per_kind : m]) for kind in range(3)]


def _places(
    clock: Sequence[tuple[float, float]],
    earliest: float,
    length: float,
    *,
    rest: tuple[float, ...],
    period: float,
) -> Iterator[float]:
    """Starts from ``earliest`` on, within a period, at which an action fits and leaves room for the rest.

    At once, or so that what is left of a gap is filled by some of the rest.
    """
    close = CLOSE * period
    sums = {0.0}
    for other in rest:
        sums |= {other + total for total in sums}
    anchors = {place + taken + total for place, taken in clock for total in sums}
    anchors |= {place - length - total for place, _ in clock for total in sums}
    if not clock:
        anchors = {earliest + total for total in sums}
    later = ((anchor - earliest) % period for anchor in anchors)
    waits = sorted({0.0, *(0.0 if period - wait < close else wait for wait in later)})
    for wait in waits:
        place = (earliest + wait) % period
        if any(_overlap(place, length, *other, period=period) for other in clock):
            continue
        if _fits(_gaps((*clock, (place, length)), period), tuple(round(other / period, 9) for other in rest)):
            yield earliest + wait


def _overlap(place: float, length: float, other: float, taken: float, *, period: float) -> bool:
    close = CLOSE * period
    after, until = (place - other) % period, (other - place) % period
    return (close < period - after and after < taken - close) or (
        close < period - until and until < length - close
    )


def _gaps(clock: Sequence[tuple[float, float]], period: float) -> tuple[float, ...]:
    """Lengths of the free stretches in periods, sorted."""
    taken = sorted(clock)
    following = [*(place for place, _ in taken[1:]), taken[0][0] + period]
    gaps = (
        (after - place - length) / period for (place, length), after in zip(taken, following, strict=True)
    )
    return tuple(sorted(round(gap + CLOSE, 9) for gap in gaps if gap > CLOSE))


@functools.lru_cache(maxsize=100_000)
def _fits(gaps: tuple[float, ...], lengths: tuple[float, ...]) -> bool:
    """Whether actions of these lengths, the longest first, can lie in the gaps."""
    if not lengths:
        return True
    first, others = lengths[0], lengths[1:]
    for index, gap in enumerate(gaps):
        if gap >= first and (index == 0 or gap != gaps[index - 1]):
            smaller = tuple(sorted((*gaps[:index], round(gap - first, 9), *gaps[index + 1 :])))
            if _fits(smaller, others):
                return True
    return False


def _first(places: Iterator[float], number: int) -> Iterator[float]:
    for place, _ in zip(places, range(number), strict=False):
        yield place


def _best(grown: list[_Partial], number: int, period: float) -> list[_Partial]:
    """The quickest, of those whose ranks run the same actions in the same order only one."""
    found: dict[object, _Partial] = {}
    for partial in sorted(grown, key=lambda partial: partial.end):
        laps = tuple(int(start // period) for start in partial.starts)
        around = tuple(
            tuple(index for _, index in sorted((place, index) for index, (place, _) in enumerate(clock)))
            for clock in partial.clocks
        )
        found.setdefault((laps, around), partial)
        if len(found) == number:
            break
    return [*found.values()]
