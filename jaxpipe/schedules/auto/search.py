"""The best order that can be found for given costs and a given memory, within seconds.

Where orders come from:

named      every named schedule that fits the memory, as it is
squeezed   its actions wished for when they would run, and run when they can (``list_pass``)
patterns   repeated patterns for these costs, or for ticks (``patterns``), the same way
improved   the best few of all these, swap by swap (``improve``)

With many microbatches, steps of two shorter lengths tell which wishes deserve a pass in full. Effort is
counted in actions that were run, not in seconds, so that a request gives the same order on any machine.
"""

from collections.abc import Iterator, Sequence
from itertools import product, zip_longest
from typing import NamedTuple

from jaxpipe.schedules.auto.evaluate import makespan
from jaxpipe.schedules.auto.improve import climb, improve
from jaxpipe.schedules.auto.list_pass import NEVER, Manner, in_wished_order, list_pass
from jaxpipe.schedules.auto.problem import Orders, Problem
from jaxpipe.schedules.auto.recipes import Effort, How, Recipe

MANNERS = (
    Manner(0.5, 0.5),
    Manner(0.5, 1.0),
    Manner(0.0, 0.5),
    Manner(1.0, 0.5),
    Manner(0.0, 1.0),
    Manner(1.0, 1.0),
    Manner(1.0, 0.0),
    Manner(0.5, 0.5, reserving=True),
)
"""The first for all wishes, the others for those that do best with it."""

NUM_IN_FULL, NUM_IMPROVED = 6, 3

SWAP_COST = 0.4
"""Of an action of a list pass: what two passes of longest paths take."""


class Space(NamedTuple):
    """A problem, and none or two like it with fewer microbatches, the least first."""

    problem: Problem
    shorter: tuple[Problem, ...]
    recipes: tuple[Recipe, ...]


class Candidate(NamedTuple):
    """An order of ``problem``, and its seconds."""

    seconds: float
    problem: Problem
    orders: Orders


class _Trial(NamedTuple):
    """Seconds in full, as far as is known; ``number`` settles ties."""

    seconds: float
    number: int
    space: Space
    recipe: Recipe
    manner: Manner


def search(
    spaces: Sequence[Space], seeds: Sequence[Candidate], *, effort: Effort, goal: float
) -> list[Candidate]:
    """Seeds and what was found, the best first; nothing more is tried once ``goal`` seconds are reached."""
    found = list(seeds)
    total = effort.left

    def is_over(part: float) -> bool:
        return effort.left < (1 - part) * total or any(candidate.seconds <= goal for candidate in found)

    def attempt(pairs: Iterator[tuple[Space, Recipe]], manners: Sequence[Manner], part: float) -> None:
        for (space, recipe), manner in product(pairs, manners):
            if is_over(part):
                break
            seconds = _estimate(space, recipe, manner, found=found, effort=effort)
            if seconds == NEVER and not manner.reserving:
                manner = manner._replace(reserving=True)
                seconds = _estimate(space, recipe, manner, found=found, effort=effort)
            trials.append(_Trial(seconds, len(trials), space, recipe, manner))

    trials: list[_Trial] = []
    columns = zip_longest(*([(space, recipe) for recipe in space.recipes] for space in spaces))
    attempt((pair for row in columns for pair in row if pair), MANNERS[:1], 0.35)
    attempt(((trial.space, trial.recipe) for trial in sorted(trials)), MANNERS[1:], 0.6)
    for trial in sorted(trials)[:NUM_IN_FULL]:
        if trial.space.shorter and not is_over(0.75):
            _run(trial.space.problem, trial.recipe, trial.manner, found=found, effort=effort)
    for rank, candidate in enumerate(sorted(found, key=_seconds)[:NUM_IMPROVED]):
        if not is_over(1.0):
            part = effort.left / (NUM_IMPROVED - rank)
            num_swaps = int(part / SWAP_COST / len(candidate.problem.cost))
            way = climb if candidate.problem.timing.sync == "neighbor" else improve
            orders = way(candidate.problem, candidate.orders, num_swaps=num_swaps, goal=goal)
            effort.left -= part
            effort.num_tried += num_swaps
            found.append(Candidate(makespan(candidate.problem, orders), candidate.problem, orders))
    return sorted(found, key=_seconds)


def _seconds(candidate: Candidate) -> float:
    return candidate.seconds


def _estimate(
    space: Space, recipe: Recipe, manner: Manner, *, found: list[Candidate], effort: Effort
) -> float:
    """The seconds of the whole step, as the two shorter ones grow; or as it is, if there are none."""
    if not space.shorter:
        return _run(space.problem, recipe, manner, found=found, effort=effort)
    few, more = space.shorter
    seconds = [_run(problem, recipe, manner, found=None, effort=effort) for problem in space.shorter]
    if NEVER in seconds:
        return NEVER
    growth = (seconds[1] - seconds[0]) / (more.num_microbatches - few.num_microbatches)
    return seconds[1] + growth * (space.problem.num_microbatches - more.num_microbatches)


def _run(
    problem: Problem, recipe: Recipe, manner: Manner, *, found: list[Candidate] | None, effort: Effort
) -> float:
    effort.spend(len(problem.cost))
    wish = recipe.wish(problem)
    if recipe.how is How.SORTED:
        orders = in_wished_order(problem, wish)
    else:
        orders = list_pass(problem, wish, manner, in_ticks=recipe.how is How.TICKS)
    if orders is None:
        return NEVER
    seconds = makespan(problem, orders)
    if found is not None:
        found.append(Candidate(seconds, problem, orders))
    return seconds
