"""The parts of the search against the simulator, and against each other."""

import itertools
import random

import pytest

from jaxpipe.schedules import (
    GENERATORS,
    Costs,
    Placement,
    build,
    find_faults,
    fuse_backward,
    looped,
    simulate,
    split_backward,
    v_shaped,
    validate,
)
from jaxpipe.schedules.auto import Memory, Timing
from jaxpipe.schedules.auto.evaluate import heads, makespan, tails
from jaxpipe.schedules.auto.improve import climb, improve
from jaxpipe.schedules.auto.list_pass import Manner, in_wished_order, list_pass
from jaxpipe.schedules.auto.memory import fits
from jaxpipe.schedules.auto.patterns import find_patterns, wishes
from jaxpipe.schedules.auto.problem import Problem, from_schedule, make_problem, share_costs, to_schedule

COSTS = Costs(F=1.15, B=1.385, W=1.0, head=0.7, embedding=0.1)
TIMINGS = [
    Timing(0.0),
    Timing(0.3),
    *(Timing(0.3, "neighbor", ticks, fuse) for ticks in (1, 2) for fuse in (True, False)),
]


def problem_of(
    placement: Placement, num_microbatches: int, timing: Timing = TIMINGS[1], memory: Memory | None = None
) -> Problem:
    costs = share_costs(COSTS, placement)
    return make_problem(placement, num_microbatches, costs=costs, timing=timing, memory=memory)


@pytest.mark.parametrize("timing", TIMINGS)
def test_an_order_takes_as_long_as_simulate_says(timing: Timing) -> None:
    for name, p, m in itertools.product(GENERATORS, (1, 2, 4), (1, 3, 8)):
        if find_faults(name, num_ranks=p, num_microbatches=m):
            continue
        schedule = split_backward(build(name, num_ranks=p, num_microbatches=m))
        if schedule.placement.num_pipes > 1:
            continue
        problem = problem_of(schedule.placement, m, timing)
        run = fuse_backward(schedule) if timing.sync == "neighbor" and timing.fuse_backward else schedule
        simulation = simulate(
            run,
            costs=problem.costs,
            transfer=timing.transfer,
            sync=timing.sync,
            transfer_ticks=timing.transfer_ticks,
        )
        orders = from_schedule(problem, schedule)
        assert makespan(problem, orders) == pytest.approx(simulation.makespan, rel=1e-12), (name, p, m)
        assert to_schedule(problem, orders, schedule.name) == schedule


def test_heads_and_tails_are_times_to_both_ends() -> None:
    schedule = split_backward(build("interleaved", num_ranks=3, num_microbatches=6))
    problem = problem_of(schedule.placement, 6)
    orders = from_schedule(problem, schedule)
    ends, rest = heads(problem, orders), tails(problem, orders)
    through = [end - cost + tail for end, cost, tail in zip(ends, problem.cost, rest, strict=True)]
    assert max(through) == pytest.approx(max(ends))
    assert max(rest) == pytest.approx(max(ends))


def test_ranks_that_wait_for_each_other_have_no_end() -> None:
    problem = problem_of(looped(2), 2)
    schedule = split_backward(build("1f1b", num_ranks=2, num_microbatches=2))
    orders = from_schedule(problem, schedule)
    late = orders[0].pop(
        1
    )  # the second F of rank 0 behind the first B, and the second F of rank 1 before its
    orders[0].insert(2, late)
    orders[1].sort()
    for timing in TIMINGS:
        assert makespan(problem_of(looped(2), 2, timing), orders) == float("inf")


@pytest.mark.parametrize("placement", [looped(4), looped(3, 2), v_shaped(3), v_shaped(4)], ids=str)
def test_a_pattern_repeats_without_two_actions_at_once(placement: Placement) -> None:
    problem = problem_of(placement, 1)
    per_kind = problem.num_per_kind
    for period in (1.0, 1.1):
        length = period * (1.15 + 1.385 + 1.0 + 0.7 + 0.2)
        patterns = find_patterns(problem, period=length)
        assert patterns
        for pattern in patterns:
            for stages in problem.stages:
                taken = sorted(
                    (pattern.start[kind][stage] % length, problem.cost[kind * per_kind + stage])
                    for kind in range(3)
                    for stage in stages
                )
                for (place, cost), (after, _) in itertools.pairwise([*taken, (taken[0][0] + length, 0.0)]):
                    assert place + cost <= after + 1e-6
            orders = in_wished_order(problem, wishes(pattern, 1))
            assert orders is not None
            validate(to_schedule(problem, orders, "pattern"))


@pytest.mark.parametrize("reserving", [True, False])
def test_a_list_pass_keeps_to_the_memory(reserving: bool) -> None:
    for placement, limit in itertools.product((looped(3), looped(3, 2), v_shaped(3)), (1.0, 2.0, 3.5)):
        memory = Memory(limit, 1.0, 0.5)
        problem = problem_of(placement, 7, memory=memory)
        for pattern in find_patterns(problem, period=5.0)[:4]:
            orders = list_pass(problem, wishes(pattern, 7), Manner(0.0, 1.0, reserving))
            assert orders or not reserving, "a rank that keeps room never gets stuck"
            if orders:
                schedule = to_schedule(problem, orders, "list")
                validate(schedule)
                assert fits(schedule, memory)


@pytest.mark.parametrize(("way", "timing"), [(improve, TIMINGS[1]), (climb, TIMINGS[1]), (climb, TIMINGS[2])])
def test_small_changes_make_nothing_worse_and_break_nothing(way, timing: Timing) -> None:
    memory = Memory(3)
    schedule = build("v_half", num_ranks=4, num_microbatches=8)
    problem = problem_of(schedule.placement, 8, timing, memory)
    orders = from_schedule(problem, schedule)
    better = way(problem, orders, num_swaps=300, goal=0.0)
    assert makespan(problem, better) < makespan(problem, orders)
    changed = to_schedule(problem, better, "improved")
    validate(changed)
    assert fits(changed, memory)
    assert from_schedule(problem, schedule) == orders  # what was handed over is as it was


def test_improvement_keeps_microbatches_in_order() -> None:
    chance = random.Random(0)
    placement = v_shaped(3)
    costs = Costs(*(tuple(chance.uniform(0.5, 2.0) for _ in range(6)) for _ in range(3)))
    problem = make_problem(placement, 6, costs=costs, timing=Timing(0.1), memory=None)
    orders = from_schedule(problem, build("zb_v", num_ranks=3, num_microbatches=6))
    for order in improve(problem, orders, num_swaps=200, goal=0.0):
        queues: dict[int, list[int]] = {}
        for action in order:
            queues.setdefault(action // 6, []).append(action)
        assert all(queue == sorted(queue) for queue in queues.values())
