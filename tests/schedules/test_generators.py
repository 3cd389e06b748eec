"""Properties of the named schedules over grids of (ranks, microbatches, chunks)."""

import functools
import itertools
import re
from collections.abc import Iterator

import pytest

from jaxpipe.lowering import lower, replay
from jaxpipe.schedules import (
    GENERATORS,
    Costs,
    Kind,
    Placement,
    Schedule,
    Simulation,
    build,
    default_schedule,
    find_faults,
    forward_only,
    looped,
    parse_action,
    simulate,
    validate,
)

RANKS = range(1, 9)
MICROBATCHES = (1, 2, 3, 4, 5, 7, 8, 11, 16, 24)
GRID = list(itertools.product(RANKS, MICROBATCHES))
WHOLE_GRID = list(itertools.product(RANKS, range(1, 25)))
ONE_PIPE = [name for name in GENERATORS if name not in ("chimera", "dualpipe")]


@functools.cache
def each(name: str) -> dict[tuple[int, int], Schedule]:
    """With as many chunks as the schedule needs; the sizes that it takes."""
    return {
        (p, m): build(name, num_ranks=p, num_microbatches=m)
        for p, m in GRID
        if not find_faults(name, num_ranks=p, num_microbatches=m)
    }


@functools.cache
def each_timed(name: str) -> dict[tuple[int, int], Simulation]:
    """With unit costs."""
    return {size: simulate(schedule) for size, schedule in each(name).items()}


def chunks_of(name: str) -> Iterator[int]:
    """Up to 4."""
    least, most = GENERATORS[name].num_chunks
    yield from range(least, (4 if most is None else most) + 1)


@pytest.mark.parametrize("name", ONE_PIPE)
def test_schedules_with_one_pipe_take_every_size(name: str) -> None:
    for (p, m), v in itertools.product(GRID, chunks_of(name)):
        assert not find_faults(name, num_ranks=p, num_microbatches=m, num_chunks=v)


@pytest.mark.parametrize("name", GENERATORS)
def test_every_size_gives_a_right_schedule_and_a_right_table(name: str) -> None:
    """Twelve sizes for each v, in which all p occur; ``make test-grid`` takes all sizes."""
    for v in chunks_of(name):
        for p, m in WHOLE_GRID[3 * v :: 16]:
            prove(name, p, m, v)


@pytest.mark.grid
@pytest.mark.parametrize("v", range(1, 5))
@pytest.mark.parametrize("name", GENERATORS)
def test_really_every_size_gives_a_right_schedule_and_a_right_table(name: str, v: int) -> None:
    for p, m in WHOLE_GRID:
        prove(name, p, m, v)


def prove(name: str, p: int, m: int, v: int) -> None:
    """Either a schedule that validates, lowers and replays, or faults that tell what to use instead."""
    faults = find_faults(name, num_ranks=p, num_microbatches=m, num_chunks=v)
    if faults:
        assert name not in ONE_PIPE or v not in chunks_of(name)
        assert all("; " in fault for fault in faults), faults
        with pytest.raises(ValueError, match="must be"):
            build(name, num_ranks=p, num_microbatches=m, num_chunks=v)
        if v in chunks_of(name):
            check_remedy(name, p, m, *faults)
        return
    schedule = build(name, num_ranks=p, num_microbatches=m, num_chunks=v)
    assert (schedule.num_ranks, schedule.placement.num_chunks) == (p, v)
    assert schedule.num_microbatches == m
    replay(lower(schedule, transfer_ticks=1 + (p + m) % 2, fuse_backward=m % 3 == 0), schedule)


def check_remedy(name: str, p: int, m: int, fault: str) -> None:
    """One sentence, whose sizes can be built; no others lie nearer."""
    remedy = re.search(r"use num_ranks=(\d+) and num_microbatches=(\d+)", fault)
    assert remedy, fault
    use_p, use_m = map(int, remedy.groups())
    assert not find_faults(name, num_ranks=use_p, num_microbatches=use_m)
    distance = abs(use_p - p) + abs(use_m - m)
    for other_p, other_m in itertools.product(range(1, p + distance), range(1, m + distance)):
        if abs(other_p - p) + abs(other_m - m) < distance:
            assert find_faults(name, num_ranks=other_p, num_microbatches=other_m), (other_p, other_m)


@pytest.mark.parametrize("name", GENERATORS)
def test_each_stage_takes_microbatches_in_ascending_order(name: str) -> None:
    for schedule in each(name).values():
        seen: dict[tuple[int, int, Kind], list[int]] = {}
        for _, action in schedule.actions():
            for kind in (Kind.B, Kind.W) if action.kind is Kind.BW else (action.kind,):
                seen.setdefault((action.pipe, action.stage, kind), []).append(action.microbatch)
        for (pipe, _, _), microbatches in seen.items():
            assert microbatches == list(schedule.microbatches(pipe))


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
    for p, m in GRID:
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
    for p, (m, more) in itertools.product(RANKS, itertools.pairwise(MICROBATCHES)):
        assert zb_h1[p, m].makespan < zb_h1[p, more].makespan


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


# Chunks


@pytest.mark.parametrize("name", ["interleaved", "looped_bfs"])
def test_chunks_divide_the_bubble(name: str) -> None:
    """A chunk costs 1/v of a stage; short last groups are only ever better than a whole group more."""
    for p, v in itertools.product(RANKS, (2, 3, 4)):
        for m in (p, 2 * p, 3 * p):
            assert simulate(build(name, num_ranks=p, num_microbatches=m, num_chunks=v)).bubble == (p - 1) * 3


def test_interleaved_takes_a_short_last_group() -> None:
    for (p, m), v in itertools.product(GRID, (2, 3)):
        whole = -(-m // p) * p
        size = {"num_ranks": p, "num_chunks": v}
        short = simulate(build("interleaved", num_microbatches=m, **size))
        assert short.makespan <= simulate(build("interleaved", num_microbatches=whole, **size)).makespan


def test_interleaved_is_the_published_order() -> None:
    """p = 2, m = 4, v = 2, rank 0: chunks in groups of two, warm-up 4 (Narayanan et al. 2021, figure 4)."""
    orders = build("interleaved", num_ranks=2, num_microbatches=4).orders
    assert " ".join(map(str, orders[0])) == (
        "0F0 0F1 2F0 2F1 0F2 2BW0 0F3 2BW1 2F2 0BW0 2F3 0BW1 2BW2 2BW3 0BW2 0BW3"
    )


def test_interleaved_zb_with_one_chunk_is_zb_h1() -> None:
    for (p, m), schedule in each("zb_h1").items():
        if m > p:
            one_chunk = build("interleaved_zb", num_ranks=p, num_microbatches=m, num_chunks=1)
            assert one_chunk.orders == schedule.orders


def test_interleaved_zb_leaves_a_third_of_the_bubble() -> None:
    for p, v in itertools.product(RANKS, (2, 3, 4)):
        for m in (p, 2 * p, 3 * p):
            simulation = simulate(build("interleaved_zb", num_ranks=p, num_microbatches=m, num_chunks=v))
            assert simulation.bubble == p - 1
            assert max(simulation.peak_until_weight) <= v * p


# Zero bubble


@pytest.mark.parametrize(("name", "stages"), [("zb_h2", 1), ("zb_v", 2)])
def test_no_rank_is_idle_between_its_first_action_and_its_last(name: str, stages: int) -> None:
    for (p, m), timed in each_timed(name).items():
        if m >= 2 * p - 1:
            assert timed.longest_rank_span == 3 * m * stages
        if m >= p:
            assert timed.bubble == p - 1
        assert max(timed.peak_until_weight) <= 2 * p


def test_zb_v_holds_what_1f1b_holds() -> None:
    for size, timed in each_timed("zb_v").items():
        assert max(timed.peak_until_weight) / 2 <= max(each_timed("1f1b")[size].peak_until_weight)


@pytest.mark.parametrize(("name", "share"), [("v_half", 2), ("v_min", 3)])
def test_v_shapes_hold_a_share_of_1f1b(name: str, share: int) -> None:
    for (p, _), timed in each_timed(name).items():
        assert max(timed.peak_until_weight) <= 2 * ((p + {2: 2, 3: 4}[share]) // share)


@pytest.mark.parametrize(
    ("p", "m", "name", "optimum"), [(4, 4, "v_half", 5), (4, 4, "v_min", 11), (4, 8, "v_min", 11)]
)
def test_v_shapes_are_as_short_as_an_exact_solver_finds(p: int, m: int, name: str, optimum: int) -> None:
    """CP-SAT proved these bubbles optimal on the V with that memory (unit costs)."""
    assert each_timed(name)[p, m].bubble == optimum


def test_v_half_has_the_bubble_that_it_claims() -> None:
    for (p, m), timed in each_timed("v_half").items():
        if p > 2 and m > p // 2 + 1:
            assert timed.bubble <= (3 * p - 4 if p % 2 else 3 * p - 7)


def test_v_min_has_the_bubble_that_it_claims() -> None:
    for (p, _), timed in each_timed("v_min").items():
        assert timed.bubble <= max(4 * p - 5, 0)


# Two pipes


def test_chimera_leaves_no_bubble_in_the_middle() -> None:
    for (p, m), timed in each_timed("chimera").items():
        if p > 2 and m % p == 0:
            assert timed.bubble == p // 2
            assert max(timed.peak_until_weight) <= p


def test_chimera_of_many_pipes_is_right() -> None:
    for num_ranks, num_pipes in ((4, 4), (8, 4), (12, 6), (8, 8)):
        for m in (num_pipes, num_pipes + 1, 3 * num_pipes):
            schedule = build("chimera", num_ranks=num_ranks, num_microbatches=m, num_pipes=num_pipes)
            validate(schedule)
            assert schedule.placement.num_pipes == num_pipes


def test_dualpipe_leaves_half_the_bubble_of_dualpipe_v() -> None:
    """Of twice as many ranks, each with a whole stage instead of two halves."""
    for (p, m), timed in each_timed("dualpipe").items():
        assert timed.bubble == p // 2 - 1
        half = simulate(build("dualpipe_v", num_ranks=p // 2, num_microbatches=m // 2))
        assert timed.makespan == half.makespan
        assert max(timed.peak_until_weight) == p + 1


# Options and requests


def test_reverse_backward_takes_the_last_microbatch_first() -> None:
    schedule = build("gpipe", num_ranks=2, num_microbatches=3, reverse_backward=True)
    validate(schedule)
    assert " ".join(map(str, schedule.orders[0])) == "0F0 0F1 0F2 0BW2 0BW1 0BW0"
    assert simulate(schedule).makespan == simulate(build("gpipe", num_ranks=2, num_microbatches=3)).makespan


@pytest.mark.parametrize(
    ("num_ranks", "num_chunks", "name"),
    [(1, 1, "1f1b"), (4, 1, "1f1b"), (4, 2, "interleaved")],
)
def test_the_default_is_what_megatron_does(num_ranks: int, num_chunks: int, name: str) -> None:
    assert default_schedule(num_ranks, num_chunks) == name


def test_the_default_can_always_be_built_and_is_no_pipelining_on_one_rank() -> None:
    for p, v in itertools.product(RANKS, range(1, 5)):
        schedule = build(default_schedule(p, v), num_ranks=p, num_microbatches=6, num_chunks=v)
        assert schedule.placement.num_chunks == v
        if p == 1:
            assert max(simulate(schedule).peak_until_weight) == v


def test_an_unknown_name_is_answered_with_those_that_exist() -> None:
    with pytest.raises(
        ValueError, match=r"'zbh1' does not exist; did you mean 'zb_h1'\? there are gpipe, 1f1b, interleaved"
    ):
        build("zbh1", num_ranks=4, num_microbatches=8)


def test_all_faults_of_a_request_are_listed() -> None:
    with pytest.raises(
        ValueError, match=r"num_ranks=0 .*num_microbatches=-1 .*'limit'.*num_chunks=2 must be 1"
    ):
        build("1f1b", num_ranks=0, num_microbatches=-1, num_chunks=2, limit=3)


@pytest.mark.parametrize(
    ("name", "sizes", "says"),
    [
        ("interleaved", {"num_chunks": 1}, "num_chunks=1 must be at least 2 for interleaved; use 2, or the"),
        ("zb_v", {"num_chunks": 3}, "num_chunks=3 must be 2 for zb_v; leave it out"),
        ("gpipe", {"reverse_backward": 2}, "reverse_backward=2 must be between 0 and 1 for gpipe"),
        (
            "gpipe",
            {"num_pipes": 2},
            "'num_pipes' does not exist for gpipe, it has reverse_backward; leave it",
        ),
        ("chimera", {"num_pipes": 3}, "num_pipes=3 must be even for chimera; use 2 or 4"),
        (
            "chimera",
            {"num_ranks": 5},
            "num_ranks=5 must be a multiple of num_pipes=2 for chimera, and num_microbatches=8 at least "
            "that; use num_ranks=4 and num_microbatches=8",
        ),
        ("chimera", {"num_ranks": 1, "num_microbatches": 1}, "use num_ranks=2 and num_microbatches=2"),
        ("chimera", {"num_microbatches": 1}, "use num_ranks=4 and num_microbatches=2"),
        (
            "dualpipe",
            {"num_ranks": 3},
            "num_ranks=3 and num_microbatches=8 must be even, and the latter at least twice the former, for "
            "dualpipe; use num_ranks=2 and num_microbatches=8",
        ),
        ("dualpipe", {"num_ranks": 3, "num_microbatches": 6}, "use num_ranks=2 and num_microbatches=6"),
        ("dualpipe", {"num_microbatches": 7}, "use num_ranks=4 and num_microbatches=8"),
        ("dualpipe", {"num_microbatches": 9}, "use num_ranks=4 and num_microbatches=8 or 10"),
    ],
)
def test_a_wrong_size_is_answered_with_the_nearest_right_one(
    name: str, sizes: dict[str, int], says: str
) -> None:
    (fault,) = find_faults(name, **{"num_ranks": 4, "num_microbatches": 8} | sizes)
    assert says in fault


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
