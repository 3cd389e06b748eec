"""Replay finds every wrong cell: each one of small tables, changed to each value that it could have."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from legal_orders import random_order

from jaxpipe.lowering import TickTable, lower, replay
from jaxpipe.lowering.table import NONE, RECOMPUTE
from jaxpipe.schedules import Schedule, build, forward_only, looped, mirrored, v_shaped, with_recompute

CASES = {
    "1f1b": (build("1f1b", num_ranks=2, num_microbatches=3), 1, True),
    "zb_h1": (build("zb_h1", num_ranks=3, num_microbatches=3), 2, False),
    "V": (random_order(v_shaped(2), 2, seed=1), 1, False),
    "looped": (random_order(looped(2, 2), 2, seed=2), 2, True),
    "two pipes": (random_order(mirrored(3), 3, seed=3), 1, False),
    "R": (with_recompute(build("zb_h1", num_ranks=2, num_microbatches=3), most_held=2), 1, False),
    "R in a V": (random_order(v_shaped(2), 2, seed=4, recompute=True), 2, True),
    "R of two pipes": (random_order(mirrored(2), 4, seed=5, recompute=True), 1, False),
    "evaluation": (forward_only(looped(3), 3), 1, False),
}


def possible_values(table: TickTable, column: str) -> range:
    inbox = range(table.num_inbox_slots + 1)
    microbatches = range(table.num_microbatches)
    return {
        "kind": range(6),
        "pipe": range(table.placement.num_pipes),
        "chunk": range(table.placement.num_chunks),
        "microbatch": microbatches,
        "residual_slot": range(table.num_residual_slots + 1),
        "input_slot": range(table.num_input_slots + 1),
        "weight_slot": range(table.num_weight_slots + 1),
        "recompute_slot": range(table.num_recompute_slots + 1),
        **dict.fromkeys(("embed", "head", "unembed"), range(NONE, table.num_microbatches)),
    }.get(column, inbox)


def corrupted(table: TickTable) -> Iterator[tuple[str, TickTable]]:
    """The table with one cell changed, in every way there is."""
    for part in ("ranks", "ends"):
        columns = getattr(table, part)
        for column, array in columns._asdict().items():
            for at in np.ndindex(array.shape):
                for value in possible_values(table, column):
                    if value != array[at]:
                        changed = array.copy()
                        changed[at] = value
                        yield (
                            f"{column}{list(at)} = {value}",
                            replace(table, **{part: columns._replace(**{column: changed})}),
                        )


@pytest.mark.parametrize("case", CASES)
def test_every_wrong_cell_is_found(case: str) -> None:
    schedule, transfer_ticks, fuse = CASES[case]
    table = lower(schedule, transfer_ticks=transfer_ticks, fuse_backward=fuse)
    replay(table, schedule)
    tried = 0
    for change, wrong in corrupted(table):
        tried += 1
        try:
            replay(wrong, schedule)
        except AssertionError:
            continue
        pytest.fail(f"replay did not notice {change}")
    assert tried > 100


def lowered(name: str, num_ranks: int, num_microbatches: int) -> tuple[TickTable, Schedule]:
    schedule = build(name, num_ranks=num_ranks, num_microbatches=num_microbatches)
    return lower(schedule), schedule


def test_a_fault_names_tick_rank_slot_and_both_values() -> None:
    table, schedule = lowered("gpipe", 1, 2)
    microbatch = table.ranks.microbatch.copy()
    microbatch[2, 0] = 1
    wrong = replace(table, ranks=table.ranks._replace(microbatch=microbatch))
    with pytest.raises(
        AssertionError,
        match=r"tick 2, rank 0, inbox_read, slot \d: expected .*microbatch=1.*found .*microbatch=0",
    ):
        replay(wrong, schedule)


def test_a_slot_too_few_is_found() -> None:
    schedule = with_recompute(build("1f1b", num_ranks=3, num_microbatches=4))
    table, counts = lower(schedule), ("inbox", "residual", "input", "weight", "recompute")
    for count in (f"num_{name}_slots" for name in counts):
        with pytest.raises(AssertionError, match="tick"):
            replay(replace(table, **{count: getattr(table, count) - 1}), schedule)


def test_a_b_that_reads_what_r_has_not_made_is_found() -> None:
    """R of the two microbatches change places: each B finds the other's residuals in its slot."""
    schedule = with_recompute(build("gpipe", num_ranks=1, num_microbatches=2), most_held=2)
    table = lower(schedule)
    at = np.flatnonzero(table.ranks.kind[:, 0] == RECOMPUTE)
    columns = {}
    for name in ("microbatch", "recompute_slot"):
        column = getattr(table.ranks, name).copy()
        column[at] = column[at[::-1]]
        columns[name] = column
    with pytest.raises(AssertionError, match=r"expected .*'residual'.*microbatch=0.*found .*microbatch=1"):
        replay(replace(table, ranks=table.ranks._replace(**columns)), schedule)


def test_a_table_without_r_is_not_that_of_a_schedule_with_r() -> None:
    schedule = build("1f1b", num_ranks=2, num_microbatches=2)
    with pytest.raises(AssertionError, match="not those of '1f1b' in its order"):
        replay(lower(schedule), with_recompute(schedule))


def test_another_order_than_the_schedules_is_found() -> None:
    table, _ = lowered("gpipe", 1, 2)
    other = build("1f1b", num_ranks=1, num_microbatches=2)
    with pytest.raises(AssertionError, match="not those of '1f1b' in its order"):
        replay(table, other)


def test_a_row_too_few_is_found() -> None:
    schedule = build("1f1b", num_ranks=2, num_microbatches=2)
    table = lower(schedule, fuse_backward=True)
    short = replace(
        table,
        ranks=type(table.ranks)(*(column[:-1] for column in table.ranks)),
        ends=type(table.ends)(*(column[:-1] for column in table.ends)),
    )
    with pytest.raises(AssertionError, match=r"pipe 0, embedding: expected \[0, 1\], found \[0\]"):
        replay(short, schedule)
