"""No order is quicker than its bound, whatever costs, memory and the ways of waiting are."""

import functools
import random

import pytest

from jaxpipe.schedules import Costs, Schedule
from jaxpipe.schedules.auto import Memory, Timing
from jaxpipe.schedules.auto.bounds import bound_of
from jaxpipe.schedules.auto.memory import needed
from jaxpipe.schedules.auto.named import named_schedules, place_recompute, time_schedule
from jaxpipe.schedules.auto.problem import make_problem, share_costs

SUMS = 1 + 1e-9
"""Bound and makespan are sums of the same numbers in different orders."""


@functools.cache
def schedules(num_ranks: int, num_microbatches: int) -> tuple[Schedule, ...]:
    return tuple(named_schedules(num_ranks, num_microbatches, chunks=(1, 2, 3), two_pipes=True))


def random_costs(chance: random.Random, num_stages: int, *, with_ends: bool) -> Costs:
    ends = {"head": chance.choice([0.1, 1.0, 5.0]), "embedding": chance.choice([0.0, 0.5, 2.0])}
    F, B, W, R = (tuple(chance.choice([0.1, 1.0, 4.0]) for _ in range(num_stages)) for _ in range(4))
    if chance.random() < 0.5:
        F, B, W, R = (times[:1] * num_stages for times in (F, B, W, R))
    return Costs(F, B, W, R=R, **ends if with_ends else {})


@pytest.mark.parametrize("with_ends", [False, True])
@pytest.mark.parametrize("timing", [
    Timing(),
    *(Timing(0.0, "neighbor", ticks, fuse) for ticks in (1, 2) for fuse in (False, True)),
], ids=str)  # fmt: skip
def test_no_named_schedule_is_quicker_than_its_bound(timing: Timing, with_ends: bool) -> None:
    chance = random.Random(f"{timing} {with_ends}")
    for _ in range(400):
        schedule = chance.choice(schedules(chance.randint(1, 4), chance.choice([1, 2, 3, 4, 6])))
        placement = schedule.placement
        costs = random_costs(chance, placement.num_stages, with_ends=with_ends)
        way = timing._replace(transfer=chance.choice([0.0, 0.2, 0.5, 3.0]))
        memory = Memory(1.0, 1.0, chance.choice([None, 0.5, 2.0]), chance.choice([0.0, 3.0]))
        just_enough = Memory(needed(schedule, memory), 1.0, memory.until_weight, memory.weights)
        problem = make_problem(
            placement,
            schedule.num_microbatches,
            costs=share_costs(costs, placement),
            timing=way,
            memory=chance.choice([None, just_enough]),
        )
        seconds = time_schedule(schedule, costs, way).makespan
        assert bound_of(problem).seconds <= seconds * SUMS, (schedule.name, problem)
        again = time_schedule(place_recompute(schedule, costs, way), costs, way).makespan
        assert bound_of(problem, recompute=True).seconds <= again * SUMS, (schedule.name, problem)


def test_a_message_that_travels_while_ranks_share_an_end_is_not_counted_beside_it() -> None:
    costs = Costs(F=3.0, B=4.4, W=0.1, head=2.0, embedding=0.5)
    timing = Timing(0.5, "neighbor", transfer_ticks=2)
    schedule = next(s for s in schedules(2, 2) if s.name == "zb_h1")
    problem = make_problem(schedule.placement, 2, costs=costs, timing=timing, memory=None)
    assert bound_of(problem).seconds <= time_schedule(schedule, costs, timing).makespan
