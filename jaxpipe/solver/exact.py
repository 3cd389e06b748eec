"""The shortest order of one pipe, proven so, with OR-tools' CP-SAT.

Each action is an interval. Intervals of a rank do not overlap, messages take their time, the microbatches of
a stage and kind keep their order, and an activation is held from the start of its F to the end of its W, or
as far as its parts go, within the rank's limit. Every message is its own (the async model of ``simulate``).

Good for some dozens of actions a rank: p = 4, m = 4 takes a second, p = 4, m = 16 minutes without an end.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from types import ModuleType
from typing import Any, NamedTuple

from jaxpipe.schedules import Costs, Placement, Schedule
from jaxpipe.schedules.auto import Memory, Timing
from jaxpipe.schedules.auto.evaluate import heads
from jaxpipe.schedules.auto.memory import TOLERANCE
from jaxpipe.schedules.auto.problem import Problem, from_schedule, make_problem, share_costs, to_schedule
from jaxpipe.schedules.costs import UNIT_COSTS

_LONGEST = 2**40
"""Parts of a second; what takes longer is not for this solver."""

FINEST = 10**6
"""The solver counts in whole numbers: costs must be multiples of one such part of a second, or of more."""


class Solution(NamedTuple):
    """The best schedule found, None if there was no time to find one; none takes less than ``bound`` seconds.

    status: OPTIMAL if makespan and bound are equal, FEASIBLE or UNKNOWN if time ran out, INFEASIBLE if
    nothing fits the memory.
    """

    schedule: Schedule | None
    status: str
    makespan: float
    bound: float


def solve(
    placement: Placement,
    num_microbatches: int,
    *,
    costs: Costs = UNIT_COSTS,
    transfer: float = 0.0,
    memory: Memory | None = None,
    hint: Schedule | None = None,
    time_limit: float = 60.0,
    num_workers: int = 2,
) -> Solution:
    """The quickest order, with costs and memory as for ``find_schedule``.

    hint: a schedule to begin with. time_limit: in seconds.
    ``ImportError`` without OR-tools; ``ValueError`` if costs are finer than the solver can count.
    """
    cp_model = _import_cp_model()
    problem = make_problem(
        placement,
        num_microbatches,
        costs=share_costs(costs, placement),
        timing=Timing(transfer),
        memory=memory,
    )
    scale = _common_scale({*problem.cost, transfer})
    model = cp_model.CpModel()
    starts = _add_actions(model, problem, scale)
    if memory is not None:
        _add_memory(model, problem, starts, scale)
    if hint is not None:
        ends = heads(problem, from_schedule(problem, hint))
        for start, end, cost in zip(starts, ends, problem.cost, strict=True):
            model.add_hint(start, round((end - cost) * scale))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit
    solver.parameters.num_workers = num_workers
    solver.parameters.random_seed = 0
    status = solver.status_name(solver.solve(model))
    if status not in ("OPTIMAL", "FEASIBLE"):
        return Solution(None, status, math.inf, solver.best_objective_bound / scale)
    times = [solver.value(start) for start in starts]
    orders = [
        sorted((action for action, home in enumerate(problem.rank) if home == rank), key=times.__getitem__)
        for rank in range(problem.num_ranks)
    ]
    schedule = to_schedule(problem, orders, "exact")
    return Solution(schedule, status, solver.objective_value / scale, solver.best_objective_bound / scale)


def _import_cp_model() -> ModuleType:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ImportError("the exact solver needs OR-tools; pip install 'jaxpipe[solver]'") from error
    return cp_model


def _common_scale(values: Iterable[float]) -> int:
    """The least number that makes all values whole."""
    fractions = {value: Fraction(value).limit_denominator(FINEST) for value in values}
    scale = math.lcm(*(fraction.denominator for fraction in fractions.values()))
    if scale > FINEST or any(
        abs(value - fraction) > TOLERANCE * value for value, fraction in fractions.items()
    ):
        raise ValueError(
            f"the exact solver counts in whole numbers, but {sorted(values)} have no common part of at least "
            f"1/{FINEST}; round them"
        )
    return scale


def _add_actions(model: Any, problem: Problem, scale: int) -> list[Any]:
    """The start of each action, in parts of a second; the makespan is to be small."""
    m, num_stages, per_kind = problem.num_microbatches, problem.num_stages, problem.num_per_kind
    cost = [round(seconds * scale) for seconds in problem.cost]
    transfer = round(problem.timing.transfer * scale)
    horizon = min(_LONGEST, sum(cost) + 2 * per_kind * transfer)
    starts = [model.new_int_var(0, horizon, "") for _ in cost]
    intervals = [
        model.new_fixed_size_interval_var(start, c, "") for start, c in zip(starts, cost, strict=True)
    ]
    for rank in range(problem.num_ranks):
        model.add_no_overlap(
            [interval for interval, home in zip(intervals, problem.rank, strict=True) if home == rank]
        )
    makespan = model.new_int_var(0, horizon, "")
    for action in range(3 * per_kind):
        (kind, stage), microbatch = divmod(action // m, num_stages), action % m
        before = []
        if microbatch:
            before.append(action - 1)
        if kind:
            before.append(action - per_kind)
        if kind == 0 and stage:
            before.append(action - m)
        if kind == 1 and stage + 1 < num_stages:
            before.append(action + m)
        for other in before:
            hop = transfer if problem.rank[other] != problem.rank[action] else 0
            model.add(starts[action] >= starts[other] + cost[other] + hop)
        if kind == 2:
            model.add(makespan >= starts[action] + cost[action])
    for rank, stages in enumerate(problem.stages):  # nothing new, but it shortens proofs a great deal
        work = sum(c for c, home in zip(cost, problem.rank, strict=True) if home == rank)
        model.add(makespan >= starts[stages[0] * m] + work)
    model.minimize(makespan)
    return starts


def _add_memory(model: Any, problem: Problem, starts: Sequence[Any], scale: int) -> None:
    """Of F and B the smaller part is held from F to W, the rest until the end of B or from its start."""
    per_kind = problem.num_per_kind
    until_backward, _, freed = problem.change
    until_weight = -freed
    size_scale = _common_scale({until_backward, until_weight})
    room = int(problem.limit * size_scale * (1 + TOLERANCE))
    cost = [round(seconds * scale) for seconds in problem.cost]
    for rank in range(problem.num_ranks):
        intervals, sizes = [], []
        for forward in range(per_kind):
            if problem.rank[forward] != rank:
                continue
            backward, weight = forward + per_kind, forward + 2 * per_kind
            spans = [(forward, weight, min(until_backward, until_weight))]
            if until_backward > until_weight:
                spans.append((forward, backward, until_backward - until_weight))
            elif until_weight > until_backward:
                spans.append((backward, weight, until_weight - until_backward))
            for first, last, size in spans:
                end = starts[last] + cost[last]
                length = model.new_int_var(0, _LONGEST, "")
                intervals.append(model.new_interval_var(starts[first], length, end, ""))
                sizes.append(round(size * size_scale))
        model.add_cumulative(intervals, sizes, room)
