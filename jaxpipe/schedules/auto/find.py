"""``find_schedule``: the request, its faults, and what comes back."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from jaxpipe.schedules.auto.bounds import Bound, bound_of
from jaxpipe.schedules.auto.evaluate import makespan
from jaxpipe.schedules.auto.memory import MOST, TOLERANCE, Memory, fits, least_limit, needed
from jaxpipe.schedules.auto.named import in_backward, named_schedules, place_recompute, time_schedule
from jaxpipe.schedules.auto.problem import (
    Orders,
    Problem,
    Timing,
    from_schedule,
    make_problem,
    one_by_one,
    share_costs,
    to_schedule,
)
from jaxpipe.schedules.auto.recipes import Effort, find_recipes
from jaxpipe.schedules.auto.search import Candidate, Space, search
from jaxpipe.schedules.costs import UNIT_COSTS, Costs, find_cost_faults
from jaxpipe.schedules.generators.catalog import build, find_too_large_to_search
from jaxpipe.schedules.placement import Placement, looped, v_shaped
from jaxpipe.schedules.schedule import Schedule
from jaxpipe.schedules.simulate import Simulation, find_simulation_faults

EFFORT, EFFORT_PER_ACTION = 600_000, 1_200
"""Actions run in a search, if nothing else is asked for: some seconds; fewer if the step itself has few."""

NUM_COMPARED = 20
"""Of the best orders found, those of which the one that holds least is taken if they are equally quick."""

NUM_RECOMPUTED = 10
"""Of the best orders found, those in which R is placed."""

_ASYNC, _NO_LIMIT = Timing(), Memory(MOST)


@dataclass(frozen=True)
class Found:
    """What was found for a request, and what it is worth; seconds, and the memory's own unit.

    schedule: B and W are split. simulation: of the schedule as it runs, with BW fused if that was asked for.
    bound: what no order can beat that places stages in one of ``placements``, which are all that were tried.
    named, named_makespan: the best of the named schedules that fit. memory: what the fullest rank holds.
    num_tried: orders that were timed.
    """

    schedule: Schedule
    simulation: Simulation
    bound: Bound
    placements: tuple[Placement, ...]
    named: str | None
    named_makespan: float | None
    memory: float
    num_tried: int

    @property
    def gap(self) -> float:
        """How far the makespan may be from the best there is, as a part of the bound."""
        return max(0.0, self.simulation.makespan / self.bound.seconds - 1)


def find_schedule(
    num_ranks: int,
    num_microbatches: int,
    *,
    costs: Costs = UNIT_COSTS,
    timing: Timing = _ASYNC,
    memory: Memory | None = None,
    chunks: Iterable[int] = (1, 2),
    two_pipes: bool = False,
    recompute: bool = False,
    effort: int | None = None,
) -> Found:
    """The best order found; never slower than the best named schedule that fits.

    costs: a single number is that of a rank's whole share, and a stage of v chunks costs 1/v of it; costs per
    stage settle the number of chunks. timing: how ranks wait for each other. memory: None for no limit.
    chunks: stages per rank that may be tried; two of them in a V or looped. two_pipes: whether to consider
    schedules that hold the weights twice. recompute: with R, placed in the best orders without, and in each
    named schedule that is compared; memory does not count what R makes. effort: actions to run in the search,
    ``EFFORT`` at most if not given.

    ``ValueError`` lists all that is wrong.
    """
    chunks = _chunks_of_costs(costs, num_ranks) or tuple(chunks)
    faults = find_request_faults(
        num_ranks, num_microbatches, costs=costs, timing=timing, memory=memory, chunks=chunks
    )
    if faults:
        raise ValueError("; ".join(faults))

    def searched(placement: Placement) -> Costs:
        shared = share_costs(costs, placement)
        return in_backward(shared) if recompute else shared

    def problem_of(placement: Placement) -> Problem:
        shared = searched(placement)
        return make_problem(placement, num_microbatches, costs=shared, timing=timing, memory=memory)

    problems = [*map(problem_of, _placements(num_ranks, chunks))]
    named = [
        _Named(_seconds(schedule, problems, costs=searched(schedule.placement), timing=timing), schedule)
        for schedule in named_schedules(num_ranks, num_microbatches, chunks=chunks, two_pipes=two_pipes)
        if fits(schedule, memory)
    ]
    two_way = {one.schedule.placement for one in named if one.schedule.placement.num_pipes > 1}
    tried = [*problems, *map(problem_of, two_way)]
    bound = min(map(bound_of, tried), key=lambda one: one.seconds)
    spent = Effort(_default_effort(problems) if effort is None else effort)
    found = _search(problems, named, spent, goal=bound.seconds)
    if recompute:
        bound = _bound_with_recompute(tried, costs)
        named = [_with_recompute(one.schedule, costs, timing) for one in named]
        placed = [
            _with_recompute(to_schedule(one.problem, one.orders, "auto"), costs, timing)
            for one in found[:NUM_RECOMPUTED]
        ]
        schedule = _thriftiest(named + placed, [], memory)
    else:
        schedule = _thriftiest(named, found, memory)
    simulation = time_schedule(schedule, costs, timing)
    least = bound.seconds * (1 - TOLERANCE)
    assert simulation.makespan >= least, f"{schedule.name}: {simulation.makespan} beats the bound {bound}"
    best = min(named, key=lambda one: one.seconds, default=None)
    return Found(
        schedule=replace(schedule, name="auto"),
        simulation=simulation,
        bound=bound,
        placements=tuple(problem.placement for problem in tried),
        named=best.schedule.name if best else None,
        named_makespan=best.seconds if best else None,
        memory=needed(schedule, memory or _NO_LIMIT),
        num_tried=spent.num_tried + len(named),
    )


def find_request_faults(
    num_ranks: int,
    num_microbatches: int,
    *,
    costs: Costs = UNIT_COSTS,
    timing: Timing = _ASYNC,
    memory: Memory | None = None,
    chunks: Iterable[int] = (1, 2),
) -> list[str]:
    """All that is wrong with what ``find_schedule`` is asked for, each as rule, value and remedy."""
    chunks = _chunks_of_costs(costs, num_ranks) or tuple(chunks)
    return [*_find_faults(num_ranks, num_microbatches, costs, timing=timing, memory=memory, chunks=chunks)]


class _Named(NamedTuple):
    seconds: float
    schedule: Schedule


def _thriftiest(named: list[_Named], found: list[Candidate], memory: Memory | None) -> Schedule:
    """Of the quickest, the one that holds least."""
    enough = min([one.seconds for one in named] + [one.seconds for one in found]) * (1 + TOLERANCE)
    quickest = [one.schedule for one in named if one.seconds <= enough]
    for candidate in found[:NUM_COMPARED]:
        if candidate.seconds <= enough:
            quickest.append(to_schedule(candidate.problem, candidate.orders, "auto"))
    return min(quickest, key=lambda schedule: needed(schedule, memory or _NO_LIMIT))


def _with_recompute(schedule: Schedule, costs: Costs, timing: Timing) -> _Named:
    placed = place_recompute(schedule, costs, timing)
    return _Named(time_schedule(placed, costs, timing).makespan, placed)


def _bound_with_recompute(problems: list[Problem], costs: Costs) -> Bound:
    """Of the problems that were searched, but with R where it belongs."""
    exact = (replace(problem, costs=share_costs(costs, problem.placement)) for problem in problems)
    return min((bound_of(problem, recompute=True) for problem in exact), key=lambda one: one.seconds)


def _seconds(schedule: Schedule, problems: list[Problem], *, costs: Costs, timing: Timing) -> float:
    """Of one pipe by its problem, which is quicker than ``simulate``."""
    for problem in problems:
        if problem.placement == schedule.placement:
            return makespan(problem, from_schedule(problem, schedule))
    return time_schedule(schedule, costs, timing).makespan


def _chunks_of_costs(costs: Costs, num_ranks: int) -> tuple[int, ...]:
    """As costs per stage settle it; rounded up, so that a number that does not divide is found at fault."""
    lengths = {len(value) for value in (costs.F, costs.B, costs.W, costs.R) if isinstance(value, tuple)}
    return tuple(-(-length // num_ranks) for length in sorted(lengths)[:1]) if num_ranks > 0 else ()


def _find_faults(
    num_ranks: int,
    num_microbatches: int,
    costs: Costs,
    *,
    timing: Timing,
    memory: Memory | None,
    chunks: tuple[int, ...],
) -> Iterator[str]:
    sizes = {"num_ranks": num_ranks, "num_microbatches": num_microbatches}
    sizes |= {f"chunks[{index}]": number for index, number in enumerate(chunks)}
    too_small = [f"{size}={value} must be at least 1" for size, value in sizes.items() if value < 1]
    yield from too_small
    if not chunks:
        yield "chunks=() must have at least one number of chunks; use (1, 2)"
    elif not too_small:
        yield from find_too_large_to_search(num_ranks * max(chunks), num_microbatches)
        yield from find_cost_faults(costs, num_ranks * chunks[0])
    yield from find_simulation_faults(transfer=timing.transfer, sync=timing.sync)
    if timing.transfer_ticks not in (1, 2):
        yield f"transfer_ticks={timing.transfer_ticks} must be 1 or 2"
    if memory is not None and memory.limit < (least := least_limit(memory)) * (1 - TOLERANCE):
        yield f"memory limit={memory.limit:g} must be at least {least:g}, what one microbatch alone holds"


def _placements(num_ranks: int, chunks: tuple[int, ...]) -> Iterator[Placement]:
    for num_chunks in chunks:
        yield looped(num_ranks, num_chunks)
        if num_chunks == 2 and num_ranks > 1:
            yield v_shaped(num_ranks)


def _default_effort(problems: list[Problem]) -> float:
    return min(EFFORT, EFFORT_PER_ACTION * max(len(problem.cost) for problem in problems))


def _search(problems: list[Problem], named: list[_Named], effort: Effort, *, goal: float) -> list[Candidate]:
    spaces, seeds = [], []
    seconds = [one.seconds for one in named]
    for problem in problems:
        own = [one for one in named if one.schedule.placement == problem.placement]
        seeds += [Candidate(one.seconds, problem, from_schedule(problem, one.schedule)) for one in own]
        single = one_by_one(problem)
        seeds.append(Candidate(makespan(problem, single), problem, single))
        makes = [partial(_named_orders, name=one.schedule.name) for one in own]
        recipes = () if min(seconds, default=goal + 1) <= goal else find_recipes(problem, makes, effort)
        spaces.append(Space(problem, tuple(_shorter(problem)), recipes))
    return search(spaces, seeds, effort=effort, goal=goal)


def _shorter(problem: Problem) -> Iterator[Problem]:
    """With enough microbatches for the ranks to come into their stride."""
    num_ranks = problem.num_ranks
    if problem.num_microbatches > 4 * num_ranks:
        for number in (2 * num_ranks, 3 * num_ranks):
            yield make_problem(
                problem.placement,
                number,
                costs=problem.costs,
                timing=problem.timing,
                memory=problem.memory,
            )


def _named_orders(problem: Problem, name: str) -> Orders:
    """The named schedule of as many microbatches as the problem has."""
    sizes = {"num_ranks": problem.num_ranks, "num_microbatches": problem.num_microbatches}
    return from_schedule(problem, build(name, **sizes, num_chunks=problem.placement.num_chunks))
