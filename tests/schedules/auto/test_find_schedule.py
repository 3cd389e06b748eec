"""``find_schedule``: right, within its memory, never behind the named schedules, never ahead of its bound."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from jaxpipe.schedules import Costs, Kind, build, looped, simulate, split_backward, v_shaped, validate
from jaxpipe.schedules.auto import Found, Memory, Timing, describe, find_schedule
from jaxpipe.schedules.auto.memory import fits, needed
from jaxpipe.schedules.auto.named import named_schedules, place_recompute, time_schedule

UNEQUAL = Costs(F=10.0, B=12.0, W=8.0)
LITTLE = 40_000
"""Actions: a small part of what a search takes if it is not told."""


def requests(number: int) -> Iterator[dict[str, Any]]:
    """Of all kinds, at random."""
    chance = random.Random(7)
    for _ in range(number):
        num_ranks = chance.choice([1, 2, 3, 4])
        num_chunks = chance.choice([1, 2])
        num_stages = num_ranks * num_chunks
        per_stage = [tuple(chance.uniform(0.5, 2.0) for _ in range(num_stages)) for _ in range(3)]
        costs = chance.choice(
            [UNEQUAL, Costs(1e-3, 1.2e-3, 8e-4, head=3e-4, embedding=1e-5), Costs(*per_stage, head=0.3)]
        )
        scale = 1e-4 if costs.W == 8e-4 else 0.3
        activation, part = chance.choice([(1.0, None), (3.0, 2.0), (2.0, 3.0)])
        weights = chance.choice([0.0, 5.0])
        room = max(activation, part or 0.0) * chance.choice([1, 1.5, 2, num_ranks, 2 * num_ranks])
        yield {
            "num_ranks": num_ranks,
            "num_microbatches": chance.choice([1, 2, 3, 5, 8, 17]),
            "costs": costs,
            "timing": Timing(
                transfer=chance.choice([0.0, scale]),
                sync=chance.choice(["async", "neighbor"]),
                transfer_ticks=chance.choice([1, 2]),
                fuse_backward=chance.choice([True, False]),
            ),
            "memory": chance.choice([None, Memory(weights + room, activation, part, weights)]),
        }


@pytest.fixture(scope="module")
def found() -> list[tuple[dict[str, Any], Found]]:
    return [(request, find_schedule(**request, effort=4_000)) for request in requests(40)]


def test_what_is_found_is_right_and_fits(found: list[tuple[dict[str, Any], Found]]) -> None:
    for request, one in found:
        validate(one.schedule)
        assert fits(one.schedule, request["memory"])
        if request["memory"]:
            assert one.memory == needed(one.schedule, request["memory"])


def test_each_stage_takes_microbatches_in_ascending_order(found: list[tuple[dict[str, Any], Found]]) -> None:
    for _, one in found:
        for stage, kind in ((a.stage, a.kind) for _, a in one.schedule.actions() if a.microbatch == 0):
            of_stage = [a.microbatch for _, a in one.schedule.actions() if (a.stage, a.kind) == (stage, kind)]
            assert of_stage == sorted(of_stage)


def test_it_is_never_slower_than_the_best_named_schedule_that_fits(
    found: list[tuple[dict[str, Any], Found]],
) -> None:
    for request, one in found:
        costs, sizes = request["costs"], (request["num_ranks"], request["num_microbatches"])
        chunks = (len(costs.F) // sizes[0],) if isinstance(costs.F, tuple) else (1, 2)
        times = {
            schedule.name: time_schedule(schedule, costs, request["timing"]).makespan
            for schedule in named_schedules(*sizes, chunks=chunks, two_pipes=False)
            if fits(schedule, request["memory"])
        }
        assert one.simulation.makespan <= min(times.values(), default=float("inf")) * (1 + 1e-9)
        assert (one.named is None) == (not times)
        if times:
            assert one.named_makespan == pytest.approx(min(times.values()), rel=1e-9)


def test_no_bound_is_above_what_was_found(found: list[tuple[dict[str, Any], Found]]) -> None:
    for _, one in found:
        assert one.bound.seconds <= one.simulation.makespan * (1 + 1e-9)


@pytest.fixture(scope="module")
def with_r() -> list[tuple[dict[str, Any], Found]]:
    return [
        (request, find_schedule(**request, recompute=True, effort=4_000))
        for request in itertools.islice(requests(40), 14)
    ]


def test_an_order_with_r_is_right_and_never_slower_than_the_best_named_one_with_r(
    with_r: list[tuple[dict[str, Any], Found]],
) -> None:
    for request, one in with_r:
        validate(one.schedule)
        assert one.schedule.recomputes
        assert fits(one.schedule, request["memory"])
        assert one.bound.seconds <= one.simulation.makespan * (1 + 1e-9)
        costs, timing = request["costs"], request["timing"]
        sizes = request["num_ranks"], request["num_microbatches"]
        chunks = (len(costs.F) // sizes[0],) if isinstance(costs.F, tuple) else (1, 2)
        times = [
            time_schedule(place_recompute(schedule, costs, timing), costs, timing).makespan
            for schedule in named_schedules(*sizes, chunks=chunks, two_pipes=False)
            if fits(schedule, request["memory"])
        ]
        assert one.simulation.makespan <= min(times, default=float("inf")) * (1 + 1e-9)
        assert one.named_makespan == (min(times) if times else None)


def test_a_search_with_r_beats_named_orders_with_r() -> None:
    """In ticks, with messages of two: 1f1b's relatives were not made for a fourth kind of action."""
    one = find_schedule(4, 8, timing=Timing(sync="neighbor", transfer_ticks=2), recompute=True, effort=LITTLE)
    assert one.named_makespan is not None
    assert one.simulation.makespan < one.named_makespan


def test_a_single_cost_of_r_is_that_of_a_whole_share() -> None:
    for one in (
        find_schedule(2, 3, costs=UNEQUAL, chunks=(n,), recompute=True, effort=LITTLE) for n in (1, 2)
    ):
        assert one.simulation.work == pytest.approx((93.0, 93.0))


def test_the_same_request_gives_the_same_order() -> None:
    first, second = (find_schedule(3, 8, costs=UNEQUAL, memory=Memory(2), effort=LITTLE) for _ in range(2))
    assert first.schedule == second.schedule


def test_with_the_memory_of_1f1b_no_order_is_better_than_the_one_found() -> None:
    # Two stages of these costs on each rank: zb_v takes 1009, and what is published 1010.
    costs = Costs(F=(10.0,) * 8, B=(12.0,) * 8, W=(8.0,) * 8)
    one = find_schedule(4, 16, costs=costs, timing=Timing(transfer=1.0), memory=Memory(4), effort=100_000)
    assert one.simulation.makespan == one.bound.seconds == 1005.0
    assert one.bound.reason == "turn: rank 3 has room for 8 F until its first B"
    assert (one.named, one.named_makespan) == ("zb_v", 1009.0)


@pytest.mark.parametrize(("limit", "published"), [(3, 0.091), (2, 0.281)])
def test_with_less_memory_it_beats_what_is_published(limit: int, published: float) -> None:
    costs = Costs(F=(10.0,) * 8, B=(12.0,) * 8, W=(8.0,) * 8)
    one = find_schedule(4, 16, costs=costs, timing=Timing(transfer=1.0), memory=Memory(limit), effort=100_000)
    assert max(one.simulation.peak_until_weight) <= 2 * limit
    assert one.simulation.bubble_fraction < published - 0.001


@pytest.mark.parametrize("transfer_ticks", [1, 2])
def test_orders_made_for_the_lowered_program_beat_the_named_ones(transfer_ticks: int) -> None:
    timing = Timing(transfer=1.0, sync="neighbor", transfer_ticks=transfer_ticks)
    one = find_schedule(4, 16, costs=UNEQUAL, timing=timing, memory=Memory(8), effort=100_000)
    assert one.named_makespan is not None
    assert one.simulation.makespan < 0.98 * one.named_makespan


def test_a_single_number_is_the_cost_of_a_whole_share() -> None:
    for one in (find_schedule(2, 3, costs=UNEQUAL, chunks=(n,), effort=LITTLE) for n in (1, 2)):
        assert one.simulation.work == (90.0, 90.0)


def test_two_pipes_are_considered_only_if_asked_and_hold_weights_twice() -> None:
    timing = Timing(transfer=1.0)
    memory = Memory(limit=100.0, activation=4.0, weights=30.0)
    for two_pipes in (False, True):
        one = find_schedule(
            4, 8, costs=UNEQUAL, timing=timing, memory=memory, chunks=(1,), two_pipes=two_pipes, effort=LITTLE
        )
        assert one.schedule.placement.num_pipes == 1 + two_pipes
        assert one.memory <= 100.0
        assert one.bound.seconds <= one.simulation.makespan
    assert find_schedule(
        4, 8, costs=UNEQUAL, timing=timing, memory=Memory(70.0, 4.0, weights=30.0), chunks=(1,),
        two_pipes=True, effort=LITTLE,
    ).schedule.placement.num_pipes == 1  # fmt: skip


def test_what_is_held_until_b_and_until_w_counts_apart() -> None:
    schedule = split_backward(build("1f1b", num_ranks=3, num_microbatches=5))
    assert needed(schedule, Memory(limit=1.0)) == 3.0
    # Three until B; then two, and what B leaves for its W.
    assert needed(schedule, Memory(limit=1.0, activation=10.0, until_weight=4.0)) == 30.0
    assert needed(schedule, Memory(limit=1.0, activation=10.0, until_weight=14.0, weights=5.0)) == 39.0


def test_all_that_is_wrong_with_a_request_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"num_ranks=0 .*transfer=-1.0 .*sync='x' .*transfer_ticks=3 .*limit=0.5"
    ):
        find_schedule(0, 4, timing=Timing(-1.0, "x", 3), memory=Memory(0.5))
    with pytest.raises(ValueError, match=r"5 costs F for 8 stages"):
        find_schedule(4, 4, costs=Costs(F=(1.0,) * 5))
    with pytest.raises(ValueError, match=r"memory limit=0 .*memory weights=-1.0 "):
        Memory(0, weights=-1.0)


def test_the_smallest_limit_that_fits_is_named_and_fits() -> None:
    with pytest.raises(
        ValueError, match=r"memory limit=6 must be at least 7, what one microbatch alone holds"
    ):
        find_schedule(3, 4, memory=Memory(6, 2.0, 4.0, 3.0))
    for chunks in ((1,), (2,)):
        assert find_schedule(3, 4, memory=Memory(7, 2.0, 4.0, 3.0), chunks=chunks, effort=LITTLE).memory <= 7


def test_build_knows_auto_by_name() -> None:
    schedule = build("auto", num_ranks=4, num_microbatches=4, memory_limit=2)
    assert schedule.name == "auto"
    simulation = simulate(schedule)
    assert max(simulation.peak_until_weight) <= 4
    assert simulation.bubble == 11.0  # proven best in tests/solver
    with pytest.raises(ValueError, match="memory_limit=0 must be 1 or more for auto"):
        build("auto", num_ranks=4, num_microbatches=4, memory_limit=0)


def test_without_a_limit_the_order_that_holds_least_of_the_best_is_taken() -> None:
    one = find_schedule(1, 6)
    assert one.simulation.makespan == 18.0
    assert one.memory == 1.0


def test_a_description_has_the_figures() -> None:
    one = find_schedule(2, 4, memory=Memory(2), effort=LITTLE)
    lines = describe(one)
    assert lines[0] == "makespan 12.5, bubble 4.0%; 2 chunks a rank, holds 2"
    within = "at most 2 chunks, looped or in a V, and one pipe"
    assert lines[1].startswith(f"no order of {within} takes less than 12.5 (")
    assert lines[1].endswith("it is the best of these")
    assert lines[2].startswith("best named schedule: ")


@pytest.mark.parametrize(
    ("chunks", "two_pipes", "within"),
    [
        ((1,), False, "1 chunk and one pipe"),
        ((1,), True, "1 chunk and one or two pipes"),
        ((3,), False, "3 chunks and one pipe"),
        ((1, 2, 3), False, "at most 3 chunks, looped or in a V, and one pipe"),
    ],
)
def test_a_description_says_among_what_it_is_the_best(
    chunks: tuple[int, ...], two_pipes: bool, within: str
) -> None:
    one = find_schedule(2, 4, chunks=chunks, two_pipes=two_pipes, effort=1)
    assert f"no order of {within} takes less than " in describe(one)[1]


def test_the_gap_is_never_negative() -> None:
    one = find_schedule(2, 4, effort=1)
    rounded = replace(one, bound=one.bound._replace(seconds=one.simulation.makespan * (1 + 1e-12)))
    assert rounded.gap == 0.0


@pytest.mark.parametrize("chunks", [(1,), (2,), (3,), (1, 2, 3)])
def test_what_one_microbatch_fits_something_is_found_for(chunks: tuple[int, ...]) -> None:
    for memory in (Memory(1.75), Memory(1.0), Memory(1.7, 1.0, 1.7)):
        one = find_schedule(5, 6, timing=Timing(1.0, "neighbor"), memory=memory, chunks=chunks, effort=100)
        validate(one.schedule)
        assert one.memory <= memory.limit * (1 + 1e-9)


def test_placements_are_looped_and_v_shaped() -> None:
    placements = {
        find_schedule(3, m, chunks=(n,), effort=LITTLE).schedule.placement for m in (2, 6) for n in (1, 2)
    }
    assert placements <= {looped(3, 1), looped(3, 2), v_shaped(3)}
    assert Kind.BW not in {action.kind for _, action in find_schedule(2, 2).schedule.actions()}
