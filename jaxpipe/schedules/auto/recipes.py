"""What orders can be made of: wishes for a problem of any number of microbatches, and how to follow them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from itertools import product, zip_longest
from typing import NamedTuple

from jaxpipe.schedules.auto.bounds import least_period
from jaxpipe.schedules.auto.evaluate import heads
from jaxpipe.schedules.auto.patterns import Pattern, find_patterns, wishes
from jaxpipe.schedules.auto.problem import Orders, Problem

STRETCHES = (1.0, 1.01, 1.03, 1.06, 1.1, 1.15, 1.22, 1.3)
"""Periods of patterns, in the least that there can be: a longer one is easier to fill."""

KIND_CYCLES = ("", "FBW", "XXW", "FFBBWW", "FBFBWW", "FBFWBW", "FFBWBW", "XXXXWW", "XXXWXW")
"""Which kind runs in which tick, for patterns of ticks; none for whatever comes."""

LEAST_KEPT, MOST_KEPT, NUM_PLACED = 3, 16, 200
"""Half-built patterns to keep: ``NUM_PLACED`` stages in all, within these limits."""

PATTERNS_PART, PLACE_COST = 0.15, 20
"""Of the effort, what patterns of one placement may take; and what each stage of each of them takes."""


class How(StrEnum):
    """How an order comes of wishes."""

    SECONDS = "seconds"
    """by a list pass, in which actions take their seconds"""
    TICKS = "ticks"
    """by a list pass in which each takes a tick"""
    SORTED = "sorted"
    """by sorting"""


class Recipe(NamedTuple):
    """Wishes for a problem of any number of microbatches, and how to make an order of them."""

    wish: Callable[[Problem], list[float]]
    how: How


@dataclass
class Effort:
    """What is left to spend, in actions of a list pass, and how many orders were timed."""

    left: float
    num_tried: int = 0

    def spend(self, actions: float) -> None:
        self.left -= actions
        self.num_tried += 1


def find_recipes(
    problem: Problem, named: Sequence[Callable[[Problem], Orders]], effort: Effort
) -> tuple[Recipe, ...]:
    """Wishes of named orders, and of patterns of each kind in turn, as far as the effort goes."""
    lowered = problem.timing.sync == "neighbor"
    squeezed = [Recipe(cache(partial(_wish_of_named, make=make)), How.SECONDS) for make in named]
    if lowered:
        squeezed += [recipe._replace(how=How.TICKS) for recipe in squeezed]
    num_kept = max(LEAST_KEPT, min(MOST_KEPT, NUM_PLACED // problem.num_stages))
    least, enough = least_period(problem), PATTERNS_PART * effort.left
    families: list[list[Recipe]] = []
    requests: list[tuple[float, str | None]] = [(stretch * least, None) for stretch in STRETCHES]
    if lowered:
        requests = [(3.0 * len(problem.stages[0]), kinds) for kinds in KIND_CYCLES] + requests
    for period, kinds in requests:
        if kinds and period % len(kinds):
            continue  # the cycle does not fit into the period
        if families and enough < 0:
            break
        enough -= PLACE_COST * 2 * problem.num_stages * num_kept
        in_ticks = kinds is not None
        patterns = find_patterns(
            problem, period=period, in_ticks=in_ticks, kinds=kinds or "", num_kept=num_kept
        )
        families.append(_recipes_of(patterns, (How.SORTED, How.TICKS) if in_ticks else (How.SECONDS,)))
    return (*squeezed, *(recipe for row in zip_longest(*families) for recipe in row if recipe))


def _recipes_of(patterns: Sequence[Pattern], ways: Sequence[How]) -> list[Recipe]:
    return [
        Recipe(partial(_wish_of_pattern, pattern=pattern), how) for pattern, how in product(patterns, ways)
    ]


def _wish_of_named(problem: Problem, make: Callable[[Problem], Orders]) -> list[float]:
    orders = make(problem)
    return [end - cost for end, cost in zip(heads(problem, orders), problem.cost, strict=True)]


def _wish_of_pattern(problem: Problem, pattern: Pattern) -> list[float]:
    return wishes(pattern, problem.num_microbatches)
