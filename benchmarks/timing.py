"""Times of programs that take turns, so that what else the machine does falls on all of them alike."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple


class Spread(NamedTuple):
    """Median, minimum and maximum of a few measurements."""

    median: float
    min: float
    max: float


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    return Spread(median(values), min(values), max(values))


def time_in_turn(
    steps: Mapping[str, Callable[[], object]],
    num_rounds: int,
    *,
    after_round: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each step in each round; a step must return only when its work is done.

    One more round goes first and does not count. Every other round runs backwards, so that no step
    always follows the same one.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(num_rounds + 1):
        for name in list(steps) if number % 2 else reversed(list(steps)):
            start = time.perf_counter()
            steps[name]()
            if number:
                seconds[name].append(time.perf_counter() - start)
        after_round()
    return seconds


def ratios(seconds: Sequence[float], base: Sequence[float]) -> Spread:
    """The spread of the quotients round by round."""
    return spread([ours / theirs for ours, theirs in zip(seconds, base, strict=True)])
