"""R in an order: right, never in the way, and worth what a closed form says."""

import itertools
from dataclasses import replace

import pytest

from jaxpipe.lowering import lower, replay
from jaxpipe.schedules import (
    GENERATORS,
    Costs,
    Kind,
    Schedule,
    build,
    find_faults,
    forward_only,
    from_csv,
    looped,
    parse_action,
    peak_held,
    simulate,
    split_backward,
    to_csv,
    validate,
    with_communication,
    with_recompute,
)
from jaxpipe.schedules.messages import receives, sends
from jaxpipe.schedules.recompute import directly_before

SMALL = [
    (name, p, m)
    for name, p, m in itertools.product(GENERATORS, (1, 2, 3, 4), (1, 2, 4, 5, 8))
    if not find_faults(name, num_ranks=p, num_microbatches=m)
]
WAYS = [
    {"sync": "async"},
    {"sync": "async", "transfer": 0.3},
    {"sync": "neighbor"},
    {"sync": "neighbor", "transfer_ticks": 2, "transfer": 0.2},
]
UNEQUAL = Costs(F=1.15, B=1.385, W=1.0, R=1.1, head=0.7, embedding=0.1)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("most_held", [1, 2])
def test_every_schedule_takes_r_and_is_never_slower_than_with_r_right_before_b(
    way: dict, most_held: int
) -> None:
    for number, (name, p, m) in enumerate(SMALL):
        schedule = build(name, num_ranks=p, num_microbatches=m)
        schedule = split_backward(schedule) if number % 2 else schedule
        costs = UNEQUAL if number % 3 else Costs()
        placed = with_recompute(schedule, costs=costs, **way, most_held=most_held)
        validate(placed)
        assert without_r(placed) == schedule, "the others keep their order"
        assert placed == with_recompute(schedule, costs=costs, **way, most_held=most_held)
        for until in (Kind.B, Kind.W):
            assert peak_held(placed, until) == peak_held(schedule, until)
        direct = directly_before(schedule)
        assert max(peak_held(placed, Kind.B, since=Kind.R)) <= most_held
        owed, least = (max(peak_held(order, Kind.W, since=Kind.R)) for order in (placed, direct))
        assert owed <= least + most_held - 1
        made, right_before = (simulate(order, costs=costs, **way).makespan for order in (placed, direct))
        assert made <= right_before


def without_r(schedule: Schedule) -> Schedule:
    orders = (tuple(action for action in order if action.kind is not Kind.R) for order in schedule.orders)
    return replace(schedule, orders=tuple(orders))


@pytest.mark.parametrize("name", GENERATORS)
def test_tables_with_r_are_right(name: str) -> None:
    for _, p, m in (size for size in SMALL if size[0] == name):
        schedule = with_recompute(build(name, num_ranks=p, num_microbatches=m), sync="neighbor")
        for transfer_ticks, fuse in itertools.product((1, 2), (False, True)):
            replay(lower(schedule, transfer_ticks=transfer_ticks, fuse_backward=fuse), schedule)


def test_messages_are_those_without_r() -> None:
    schedule = build("zb_v", num_ranks=3, num_microbatches=5)
    placed = with_recompute(schedule)
    assert (sends(placed), receives(placed)) == (sends(schedule), receives(schedule))
    assert with_communication(placed).grouping == with_communication(schedule).grouping


# What it saves


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
@pytest.mark.parametrize("R", [1.0, 0.75])
def test_the_chain_of_the_drain_is_shorter_by_an_r_for_each_rank_but_one(name: str, R: float) -> None:
    """Each B of the last microbatch waits for that of the next rank: with R before the wait, for B alone.

    gpipe, 1f1b   R inside (m+p-1)(F+R+BW), R before (m+p-1)(F+BW) + mR
    zb_h1         R inside m(F+R+BW) + (p-1)(F+R+B-W), R before m(F+R+BW) + (p-1)(F+B-W)
    """
    for p, m in itertools.product((1, 2, 3, 4, 8), (9, 16)):
        schedule = build(name, num_ranks=p, num_microbatches=m)
        inside = simulate(schedule, costs=Costs(B=1 + R)).makespan
        before = simulate(with_recompute(schedule, costs=Costs(R=R)), costs=Costs(R=R)).makespan
        bubble = (p - 1) * (3 if name != "zb_h1" else 1)
        assert before == m * (3 + R) + bubble
        assert inside == before + (p - 1) * R


@pytest.mark.parametrize(
    ("name", "split", "inside", "before"),
    [("1f1b", False, 58, 48), ("1f1b", True, 48, 38), ("zb_h1", True, 45, 35), ("zb_v", True, 82, 67)],
)
def test_in_ticks_actions_of_one_length_save_more(name: str, split: bool, inside: int, before: int) -> None:
    """Four ranks, eight microbatches: where all actions cost the same, no neighbour is waited for."""
    schedule = build(name, num_ranks=4, num_microbatches=8)
    schedule = split_backward(schedule) if split else schedule
    assert simulate(schedule, costs=Costs(B=2), sync="neighbor").makespan == inside
    assert simulate(with_recompute(schedule, sync="neighbor"), sync="neighbor").makespan == before


def test_r_goes_where_its_rank_waits_for_an_f() -> None:
    """Not only right before B: rank 0 waits for 3F3, and does 3R2 in the meantime."""
    schedule = split_backward(build("interleaved", num_ranks=3, num_microbatches=4))
    placed, direct = with_recompute(schedule), directly_before(schedule)
    assert "3W1 3R2 3F3 3B2" in " ".join(map(str, placed.orders[0]))
    assert "3W1 3F3 3R2 3B2" in " ".join(map(str, direct.orders[0]))
    assert (simulate(direct).makespan, simulate(placed).makespan) == (37, 36)


def test_what_r_costs_changes_nothing_without_r() -> None:
    schedule = build("zb_h1", num_ranks=3, num_microbatches=4)
    assert simulate(schedule, costs=Costs(R=7.0)) == simulate(schedule)


# Faults

RIGHT = with_recompute(split_backward(build("1f1b", num_ranks=2, num_microbatches=2)))


def by_hand(order: str, num_microbatches: int = 1) -> Schedule:
    return Schedule("hand", looped(1), num_microbatches, (tuple(map(parse_action, order.split())),))


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("0F0 0R0 0BW0 0F1 0BW1", r"0R1 runs 0 times; rank 0 must run it once, as there are R of others"),
        (
            "0F0 0F1 0R0 0BW0 0R1 0R1 0BW1",
            r"0R1 runs 2 times; rank 0 must run it once(.|\n)*\[0R1\] *\[0R1\]",
        ),
        ("0F0 0BW0 0R0 0F1 0R1 0BW1", r"0BW0 comes before 0R0 on rank 0, but needs it(.|\n)*\[0BW0\]"),
        ("0F0 0B0 0R0 0W0 0F1 0R1 0BW1", r"0B0 comes before 0R0 on rank 0, but needs it(.|\n)*\[0B0\]"),
        ("0R0 0F0 0BW0 0F1 0R1 0BW1", r"0R0 comes before 0F0 on rank 0, but needs it(.|\n)*\[0R0\]"),
        ("0F0 0R0 0BW0 0F1 0R1 0BW1 0R7", r"0R7 on rank 0 does not exist"),
    ],
)
def test_each_fault_of_r_is_found_and_marked(order: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        validate(by_hand(order, num_microbatches=2))


def test_an_evaluation_recomputes_nothing() -> None:
    schedule = forward_only(looped(1), 1)
    orders = (tuple(map(parse_action, ("0F0", "0R0"))),)
    with pytest.raises(ValueError, match="0R0 runs 1 times; rank 0 must run it never"):
        validate(replace(schedule, orders=orders), forward_only=True)


def test_what_has_r_gets_no_more_and_one_must_be_held() -> None:
    with pytest.raises(ValueError, match=r"schedule .1f1b. has R already; .*most_held=0 must be at least 1"):
        with_recompute(RIGHT, most_held=0)
    with pytest.raises(ValueError, match="3 costs R for 2 stages"):
        with_recompute(build("1f1b", num_ranks=2, num_microbatches=2), costs=Costs(R=(1.0, 2.0, 3.0)))


# Texts


def test_r_is_written_and_read_in_our_form_with_its_line_or_without() -> None:
    text = to_csv(RIGHT)
    assert "0R0" in text
    assert from_csv(text) == RIGHT
    bare = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert from_csv(bare).orders == RIGHT.orders


def test_pytorchs_form_has_no_r() -> None:
    with pytest.raises(ValueError, match=r"PyTorch.s form has no R, .*use the form jaxpipe"):
        to_csv(RIGHT, "torch")
    with pytest.raises(ValueError, match="0R0 is our name, but the text is in PyTorch's form"):
        from_csv("0F0,0R0,0I0,0W0")
