"""Every table is replayed; slots are as few as values that live at one time."""

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from legal_orders import schedules

from jaxpipe.lowering import TickTable, lower, replay
from jaxpipe.lowering.table import BACKWARD, BACKWARD_WEIGHT, FORWARD, NONE, RECOMPUTE, WEIGHT
from jaxpipe.schedules import (
    GENERATORS,
    Action,
    Kind,
    Placement,
    Schedule,
    assign_ticks,
    build,
    find_faults,
    forward_only,
    fuse_backward,
    looped,
    mirrored,
    parse_action,
    peak_held,
    split_backward,
    v_shaped,
)
from jaxpipe.schedules.dependencies import result

SIZES = list(itertools.product((1, 2, 3, 4, 7), (1, 2, 3, 8, 13)))


def lowered(schedule: Schedule, *, transfer_ticks: int = 1, fuse_backward: bool = False) -> TickTable:
    """A table, proved."""
    table = lower(schedule, transfer_ticks=transfer_ticks, fuse_backward=fuse_backward)
    replay(table, schedule)
    return table


def most_alive_in_inbox(program: Schedule, transfer_ticks: int) -> int:
    """Counted moment by moment from what the tick table's docstring says, not from lifetimes and slots."""
    placement, last = program.placement, program.placement.num_stages - 1
    ticks = {result(action): tick for action, tick in assign_ticks(program, transfer_ticks).items()}
    most = 0
    for rank, order in enumerate(program.orders):
        spans = []
        for action in map(result, order):
            stage, microbatch, pipe = action.stage, action.microbatch, action.pipe
            if action.kind in (Kind.W, Kind.R):
                continue
            # Thirds of a tick: ends of the pipe at 0, the action at 1, arrivals at 2.
            if action.kind is Kind.F and stage == 0:
                written = 3 * ticks[action]
            elif action.kind is Kind.B and stage == last:
                written = 3 * (ticks[Action(Kind.F, stage, microbatch, pipe)] + 1)
            else:
                source = Action(
                    action.kind, stage - 1 if action.kind is Kind.F else stage + 1, microbatch, pipe
                )
                hop = 1 if placement.rank(source.stage, pipe) == rank else transfer_ticks
                written = 3 * (ticks[source] + hop) - 1
            spans.append(range(written, 3 * ticks[action] + 1))
        moments = range(3 * (max(ticks.values()) + 1))
        most = max(most, *(sum(moment in span for span in spans) for moment in moments))
    return most


@settings(derandomize=True, max_examples=100, deadline=None)
@given(schedules(), st.sampled_from([1, 2]), st.booleans())
def test_orders_that_nobody_wrote_lower_to_right_tables(
    schedule: Schedule, transfer_ticks: int, fuse: bool
) -> None:
    table = lowered(schedule, transfer_ticks=transfer_ticks, fuse_backward=fuse)
    program = fuse_backward(schedule) if fuse else split_backward(schedule)
    left_by = Kind.R if schedule.recomputes else Kind.F
    assert table.num_residual_slots == max(peak_held(program, Kind.B, since=left_by))
    assert table.num_weight_slots == most_held(program, {Kind.B: 1, Kind.W: -1})
    assert table.num_input_slots == most_held(program, {left_by: 1, Kind.W: -1, Kind.BW: -1})
    of_r = most_held(program, {Kind.F: 1, Kind.R: -1})
    assert table.num_recompute_slots == (of_r if schedule.recomputes else 0)


@settings(derandomize=True, max_examples=25, deadline=None)
@given(schedules(), st.sampled_from([1, 2]))
def test_the_inbox_is_as_small_as_can_be(schedule: Schedule, transfer_ticks: int) -> None:
    table = lower(schedule, transfer_ticks=transfer_ticks)
    assert table.num_inbox_slots == most_alive_in_inbox(split_backward(schedule), transfer_ticks)


def most_held(program: Schedule, changes: dict[Kind, int]) -> int:
    """The most values that a rank holds, of which an action makes or ends so many."""
    most = 0
    for order in program.orders:
        steps = [changes.get(action.kind, 0) for action in order]
        most = max(most, *itertools.accumulate(steps))
    return most


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("transfer_ticks", [1, 2])
def test_named_schedules_lower_to_right_tables(name: str, fuse: bool, transfer_ticks: int) -> None:
    """Of all sizes; the generators' tests take every schedule through more."""
    for p, m in SIZES:
        if find_faults(name, num_ranks=p, num_microbatches=m):
            continue
        schedule = build(name, num_ranks=p, num_microbatches=m)
        table = lowered(schedule, transfer_ticks=transfer_ticks, fuse_backward=fuse)
        assert all(array.dtype == np.int32 for array in (*table.ranks, *table.ends))


@pytest.mark.parametrize("transfer_ticks", [1, 2])
@pytest.mark.parametrize(
    "placement", [looped(1), looped(3), looped(2, 3), looped(4, 2), v_shaped(3), mirrored(4)]
)
def test_evaluation_keeps_nothing_for_a_backward(placement: Placement, transfer_ticks: int) -> None:
    for num_microbatches in (1, 2, 7, 12):
        table = lowered(forward_only(placement, num_microbatches), transfer_ticks=transfer_ticks)
        assert (table.num_residual_slots, table.num_input_slots, table.num_weight_slots) == (0, 0, 0)
        assert set(np.unique(table.ranks.kind)) <= {0, FORWARD}
        assert sorted(table.ends.head[table.ends.head != NONE]) == list(range(num_microbatches))
        assert np.all(table.ends.head_slot == table.num_inbox_slots)
        assert np.all(table.ends.unembed == NONE)


@pytest.mark.parametrize("transfer_ticks", [1, 2])
def test_1f1b_stores_a_microbatch_for_each_rank_and_gpipe_all(transfer_ticks: int) -> None:
    for p, m in SIZES:
        one_f_one_b = lower(build("1f1b", num_ranks=p, num_microbatches=m), transfer_ticks=transfer_ticks)
        gpipe = lower(build("gpipe", num_ranks=p, num_microbatches=m), transfer_ticks=transfer_ticks)
        assert one_f_one_b.num_residual_slots == one_f_one_b.num_input_slots == min(m, p)
        assert gpipe.num_residual_slots == gpipe.num_input_slots == m


@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
@pytest.mark.parametrize("transfer_ticks", [1, 2])
@pytest.mark.parametrize("fuse", [False, True])
def test_memory_does_not_grow_with_microbatches(name: str, transfer_ticks: int, fuse: bool) -> None:
    for p in (1, 2, 4, 8):
        slots = {
            (
                table.num_inbox_slots,
                table.num_residual_slots,
                table.num_input_slots,
                table.num_weight_slots,
            )
            for m in (2 * p, 3 * p, 64)
            for table in [
                lower(
                    build(name, num_ranks=p, num_microbatches=m),
                    transfer_ticks=transfer_ticks,
                    fuse_backward=fuse,
                )
            ]
        }
        assert len(slots) == 1


def test_evaluation_memory_does_not_grow_with_microbatches() -> None:
    slots = {m: lower(forward_only(looped(4, 2), m)).num_inbox_slots for m in (4, 8, 32)}
    assert len(set(slots.values())) == 1


def test_two_ranks_and_one_microbatch_by_hand() -> None:
    """F goes up in tick 0, B comes down from tick 2, and tick 5 only adds the embedding's gradient."""
    table = lowered(build("1f1b", num_ranks=2, num_microbatches=1))
    assert table.ranks.kind.tolist() == [
        [FORWARD, 0],
        [0, FORWARD],
        [0, BACKWARD],
        [BACKWARD, WEIGHT],
        [WEIGHT, 0],
    ]
    assert table.ends.embed[:, 0].tolist() == [0, NONE, NONE, NONE, NONE]
    assert table.ends.head[:, 0].tolist() == [NONE, NONE, 0, NONE, NONE]
    assert table.ends.unembed[:, 0].tolist() == [NONE, NONE, NONE, NONE, 0]
    assert (table.num_inbox_slots, table.num_residual_slots, table.num_weight_slots) == (1, 1, 1)
    # Both neighbours of either rank are the other one; messages come from below.
    assert table.ranks.from_below.tolist() == [[1, 0], [1, 1], [0, 1], [1, 1], [1, 1]]
    assert np.all(table.ranks.from_above == 1)
    assert np.all(table.ranks.from_self == 1)


def test_the_table_has_a_row_more_where_the_last_action_feeds_an_end() -> None:
    fused = lowered(build("1f1b", num_ranks=1, num_microbatches=1), fuse_backward=True)
    assert fused.ranks.kind[:, 0].tolist() == [FORWARD, BACKWARD_WEIGHT, 0]
    assert fused.ends.unembed[:, 0].tolist() == [NONE, NONE, 0]
    assert lower(build("1f1b", num_ranks=1, num_microbatches=1)).num_ticks == 3


def test_two_ticks_of_transfer_delay_each_hop_by_one() -> None:
    schedule = build("gpipe", num_ranks=4, num_microbatches=1)
    # 2p ticks of F and B, the last W, and one more for each of 2(p-1) hops.
    assert lowered(schedule).num_ticks == 9
    assert lowered(schedule, transfer_ticks=2).num_ticks == 9 + 6


def test_a_message_to_the_rank_itself_takes_one_tick() -> None:
    schedule = forward_only(v_shaped(1), 1)
    table = lowered(schedule, transfer_ticks=2)
    assert table.ranks.kind[:, 0].tolist() == [FORWARD, FORWARD, 0]
    assert table.ranks.from_self[:, 0].tolist() == [0, 1, 1]


def test_tables_without_r_are_what_they_were_before_there_was_r() -> None:
    """All their columns but the one that R brought, which is empty, by a hash taken then."""
    found = hashlib.sha256()
    for name, p, m, ticks, fuse in itertools.product(
        GENERATORS, (1, 2, 3, 4), (1, 3, 8), (1, 2), (False, True)
    ):
        if find_faults(name, num_ranks=p, num_microbatches=m):
            continue
        schedule = build(name, num_ranks=p, num_microbatches=m)
        table = lower(schedule, transfer_ticks=ticks, fuse_backward=fuse)
        columns = table.ranks._asdict()
        assert not columns.pop("recompute_slot").any()
        for column in (*columns.values(), *table.ends):
            found.update(column.tobytes())
        slots = (
            table.num_inbox_slots,
            table.num_residual_slots,
            table.num_input_slots,
            table.num_weight_slots,
        )
        found.update(str(slots).encode())
    assert found.hexdigest() == "bdd766c9f94c2f6eae5752726dede9885b8aa75dd9ea9c3e9c59865c2d94aeec"


def test_r_has_a_tick_of_its_own_and_hands_on_what_f_left() -> None:
    """One rank, two microbatches: inputs of layers wait in two slots, residuals in one."""
    order = tuple(map(parse_action, ("0F0", "0F1", "0R0", "0B0", "0W0", "0R1", "0BW1")))
    table = lowered(Schedule("hand", looped(1), 2, (order,)), fuse_backward=True)
    expected = [FORWARD, FORWARD, RECOMPUTE, BACKWARD_WEIGHT, RECOMPUTE, BACKWARD_WEIGHT, 0]
    assert table.ranks.kind[:, 0].tolist() == expected
    assert table.ranks.recompute_slot[:, 0].tolist() == [0, 1, 0, 2, 1, 2, 2]
    assert table.ranks.residual_slot[:, 0].tolist() == [1, 1, 0, 0, 0, 0, 1]
    assert table.ranks.input_slot[:, 0].tolist() == [1, 1, 0, 0, 0, 0, 1]
    assert (table.num_recompute_slots, table.num_residual_slots, table.num_input_slots) == (2, 1, 1)


def test_splitting_and_fusing_undo_each_other() -> None:
    schedule = build("1f1b", num_ranks=3, num_microbatches=5)
    assert fuse_backward(split_backward(schedule)) == schedule
    assert [str(action) for action in split_backward(schedule).orders[2][:6]] == [
        *("2F0", "2B0", "2W0", "2F1", "2B1", "2W1")
    ]


def test_fusing_leaves_a_late_w_alone() -> None:
    order = tuple(map(parse_action, ("0F0", "0F1", "0B0", "0B1", "0W1", "0W0")))
    fused = fuse_backward(Schedule("hand", looped(1), 2, (order,)))
    assert [str(action) for action in fused.orders[0]] == ["0F0", "0F1", "0B0", "0BW1", "0W0"]


def test_a_broken_schedule_is_not_lowered() -> None:
    orders = (tuple(map(parse_action, ("0F0", "0B0"))),)
    with pytest.raises(ValueError, match="0W0 runs 0 times"):
        lower(Schedule("hand", looped(1), 1, orders))


def test_transfer_takes_one_tick_or_two() -> None:
    with pytest.raises(ValueError, match="transfer_ticks=0 must be 1 or 2"):
        lower(build("1f1b", num_ranks=2, num_microbatches=2), transfer_ticks=0)
