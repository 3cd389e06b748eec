"""Properties of the named schedules over grids of (ranks, microbatches)."""

import functools
import itertools

import pytest

from jaxpipe.schedules import (
    GENERATORS,
    Costs,
    Kind,
    Placement,
    Schedule,
    Simulation,
    build,
    forward_only,
    looped,
    parse_action,
    simulate,
    validate,
)

RANKS = range(1, 9)
MICROBATCHES = range(1, 25)
GRID = list(itertools.product(RANKS, MICROBATCHES))


@functools.cache
def each(name: str) -> dict[tuple[int, int], Schedule]:
    return {(p, m): build(name, num_ranks=p, num_microbatches=m) for p, m in GRID}


@functools.cache
def each_timed(name: str) -> dict[tuple[int, int], Simulation]:
    """With unit costs."""
    return {size: simulate(schedule) for size, schedule in each(name).items()}


@pytest.mark.parametrize("name", GENERATORS)
def test_every_size_gives_a_right_schedule(name: str) -> None:
    for schedule in each(name).values():
        validate(schedule)


@pytest.mark.parametrize("name", GENERATORS)
def test_each_stage_takes_microbatches_in_ascending_order(name: str) -> None:
    for schedule in each(name).values():
        for order in schedule.orders:
            for kinds in ({Kind.F}, {Kind.B, Kind.BW}, {Kind.W, Kind.BW}):
                microbatches = [action.microbatch for action in order if action.kind in kinds]
                assert microbatches == list(range(schedule.num_microbatches))


def test_gpipe_holds_every_microbatch() -> None:
    for (p, m), timed in each_timed("gpipe").items():
        assert timed.peak_until_weight == (m,) * p


def test_1f1b_holds_as_many_as_there_are_ranks_from_here_on() -> None:
    for (p, m), timed in each_timed("1f1b").items():
        expected = tuple(min(m, p - rank) for rank in range(p))
        assert timed.peak_until_backward == expected
        assert timed.peak_until_weight == expected


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubble_of_gpipe_and_1f1b_is_one_microbatch_for_each_further_rank(name: str) -> None:
    # Binary fractions, so that the sums are exact whatever their order.
    costs = Costs(F=1.25, B=1.5, W=0.75)
    for p, m in itertools.product(RANKS, (1, 2, 7, 8, 20)):
        assert simulate(each(name)[p, m], costs=costs).bubble == (p - 1) * (1.25 + 1.5 + 0.75)


def test_bubble_of_zb_h1_is_a_third_of_that_of_1f1b() -> None:
    for (p, m), timed in each_timed("zb_h1").items():
        if m >= p:
            assert timed.bubble == p - 1


def test_zb_h1_is_never_slower_than_1f1b() -> None:
    for size, timed in each_timed("zb_h1").items():
        assert timed.makespan <= each_timed("1f1b")[size].makespan


def test_zb_h1_holds_no_more_than_1f1b() -> None:
    for size, timed in each_timed("zb_h1").items():
        assert max(timed.peak_until_weight) <= max(each_timed("1f1b")[size].peak_until_weight)


def test_zb_h1_takes_longer_with_each_microbatch() -> None:
    zb_h1 = each_timed("zb_h1")
    for p, m in GRID:
        assert m == 1 or zb_h1[p, m - 1].makespan < zb_h1[p, m].makespan


def test_zb_h1_with_few_microbatches_runs_ahead() -> None:
    schedule = build("zb_h1", num_ranks=3, num_microbatches=2)
    assert [" ".join(map(str, order)) for order in schedule.orders] == [
        "0F0 0F1 0B0 0W0 0B1 0W1",
        "1F0 1F1 1B0 1B1 1W0 1W1",
        "2F0 2B0 2F1 2B1 2W0 2W1",
    ]


@pytest.mark.parametrize("num_chunks", [1, 2, 3])
def test_forward_only_fills_the_pipe_once(num_chunks: int) -> None:
    for p, rounds in itertools.product(RANKS, (1, 2, 5)):
        schedule = forward_only(looped(p, num_chunks), p * rounds)
        validate(schedule, forward_only=True)
        assert simulate(schedule).makespan == p * rounds * num_chunks + p - 1


def test_forward_only_takes_any_number_of_microbatches() -> None:
    for p, m in itertools.product(RANKS, (1, 2, 3, 5, 8, 13)):
        validate(forward_only(looped(p, 2), m), forward_only=True)


def test_forward_only_shares_microbatches_between_pipes() -> None:
    mirrored = Placement(2, ((0, 1), (1, 0)), ((0, 0), (0, 0)))
    schedule = forward_only(mirrored, 3)
    validate(schedule, forward_only=True)
    assert {str(action) for _, action in schedule.actions()} == {"0F0", "1F0", "0F1'", "1F1'", "0F2'", "1F2'"}


def test_an_unknown_name_is_answered_with_those_that_exist() -> None:
    with pytest.raises(
        ValueError, match=r"'zbh1' does not exist; did you mean 'zb_h1'\? there are gpipe, 1f1b, zb_h1"
    ):
        build("zbh1", num_ranks=4, num_microbatches=8)


def test_all_faults_of_a_request_are_listed() -> None:
    with pytest.raises(ValueError, match=r"num_ranks=0 .*num_microbatches=-1 .*num_chunks=2 .*'limit'"):
        build("1f1b", num_ranks=0, num_microbatches=-1, num_chunks=2, limit=3)


@pytest.mark.parametrize("text", ["0F0", "3B12", "7W3", "0BW1", "2F5'"])
def test_an_action_reads_as_it_is_written(text: str) -> None:
    assert str(parse_action(text)) == text


@pytest.mark.parametrize("text", ["", "F0", "0X1", "0F", "0F1x", "-1F0"])
def test_a_text_that_is_no_action_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an action"):
        parse_action(text)


def test_a_placement_finds_the_stage_of_a_chunk() -> None:
    placement = looped(3, 2)
    assert [placement.stage(rank, chunk) for chunk in (0, 1) for rank in range(3)] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match=r"rank 1 holds no chunk 2"):
        placement.stage(1, 2)
