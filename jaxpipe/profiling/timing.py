"""Seconds of things that are too short to time alone: many of them in one run, less a run with none."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import NamedTuple, TypeVar

ENOUGH = 0.04
"""Seconds that the things of one run should take together: the clock, and a dispatch, are far below."""

LEAST = 1e-9
"""What was too quick to be told from nothing."""

Name = TypeVar("Name", bound=Hashable)


class Seconds(NamedTuple):
    """Median, smallest and largest of some rounds."""

    median: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Seconds":
        return Seconds(*(value * factor for value in self))


def seconds_each(
    run: Callable[[Name, int], object],
    names: Sequence[Name],
    *,
    num_rounds: int,
    most: int,
    program_of: Callable[[Name], Hashable] = lambda _: None,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[Name, Seconds]:
    """Seconds of one thing of each name; ``run(name, count)`` does so many, and returns when they are done.

    What takes long is done once or twice a run, what is short up to ``most`` times. Runs take turns, so that
    what else the machine does falls on all of them alike; the first run of each does not count.

    program_of: names of one program, which follow each other, take as long as each other to do nothing.
    advance: called with 1 when one more of the rounds is over.
    """
    counts = {name: _count_for(run, name, most) for name in names}
    found: dict[Name, list[float]] = {name: [] for name in names}
    for _ in range(num_rounds):
        for _, group in groupby(names, program_of):
            of_program = [*group]
            base = _seconds(run, of_program[0], 0)
            for name in of_program:
                found[name].append((_seconds(run, name, counts[name]) - base) / counts[name])
        advance(1)
    return {name: seconds_of(values) for name, values in found.items()}


def seconds_more(
    run: Callable[[Name], object], names: Sequence[Name], *, num_rounds: int
) -> Mapping[Name, Seconds]:
    """How many seconds longer each takes than the first of them, round by round."""
    for name in names:
        run(name)
    found: dict[Name, list[float]] = {name: [] for name in names[1:]}
    for _ in range(num_rounds):
        base = _seconds(lambda name, _: run(name), names[0], 0)
        for name, values in found.items():
            values.append(_seconds(lambda name, _: run(name), name, 0) - base)
    return {name: seconds_of(values) for name, values in found.items()}


def seconds_of(values: Sequence[float]) -> Seconds:
    """Of what was measured in some rounds; noise may leave less than nothing."""
    return Seconds(*(max(value, LEAST) for value in (median(values), min(values), max(values))))


def _count_for(run: Callable[[Name, int], object], name: Name, most: int) -> int:
    """How many of it take long enough together."""
    run(name, 0)
    run(name, 1)
    one = _seconds(run, name, 1) - _seconds(run, name, 0)
    return min(max(round(ENOUGH / max(one, LEAST)), 1), most)


def _seconds(run: Callable[[Name, int], object], name: Name, count: int) -> float:
    start = time.perf_counter()
    run(name, count)
    return time.perf_counter() - start
