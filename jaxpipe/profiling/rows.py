"""Ticks that are all alike: the tables by which the executor times itself.

A program is compiled for a table that shows what its rows may do; the rows themselves are given when it runs,

    row 0       embed, and F         fill the slots, so that what is timed works on real numbers
    row 1       B, if there is any   leaves what W reads
    row 2 ...   what is timed, on the first ranks; from some row on nothing

so what something costs is the difference of two runs of one program, whose rows differ in number and whose
dispatch, casts and empty buffers do not.
"""

from collections.abc import Collection
from typing import Literal

import numpy as np

from jaxpipe.lowering.table import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    IDLE,
    NONE,
    WEIGHT,
    EndColumns,
    RankColumns,
    TickTable,
)
from jaxpipe.schedules.placement import looped

What = Literal["F", "B", "W", "BW", "embed", "head", "unembed"]
"""What one row does: an action, or an end of the pipe."""

NUM_FILLING_ROWS = 2

_KINDS: dict[What, int] = {"F": FORWARD, "B": BACKWARD, "W": WEIGHT, "BW": BACKWARD_WEIGHT}
_INPUT, _ARRIVED = 0, 1
_NUM_INBOX_SLOTS = 2


def table_of(kinds: Collection[What], *, num_ranks: int, sends: bool) -> TickTable:
    """A table that has these kinds, and messages to both neighbours if it ``sends``; one row a kind.

    And all ends: a program has code for nothing else than what its table does (lowering/segments.py).
    """
    numbers = [_KINDS[kind] for kind in kinds]
    ranks, ends = _idle_rows(len(numbers), num_ranks=num_ranks, sends=sends)
    for end in (ends.embed, ends.head, ends.unembed):
        end[0] = 0
    kind = np.repeat(np.array(numbers, np.int32)[:, None], num_ranks, axis=1)
    return TickTable(
        name="rows to be timed",
        placement=looped(num_ranks),
        num_microbatches=1,
        transfer_ticks=1,
        ranks=ranks._replace(kind=kind),
        ends=ends,
        num_inbox_slots=_NUM_INBOX_SLOTS,
        num_residual_slots=1,
        num_input_slots=1,
        num_weight_slots=1,
        num_recompute_slots=0,
    )


def rows_of(
    table: TickTable, what: What, *, num_rows: int, num_acting: int, num_ranks: int | None = None
) -> tuple[RankColumns[np.ndarray], EndColumns[np.ndarray]]:
    """``num_rows`` rows for a program of ``table``, ``num_acting`` of which do it.

    num_ranks: the first ranks, that act; all if left out. At ends of the pipe all ranks take part.
    """
    all_ranks = table.placement.num_ranks
    kinds, acting = set(np.unique(table.ranks.kind)), num_ranks or all_ranks
    assert num_acting + NUM_FILLING_ROWS <= num_rows, f"{num_acting} rows of {num_rows}, and those that fill"
    sends = bool((table.ranks.from_below != table.num_inbox_slots).any())
    ranks, ends = _idle_rows(num_rows, num_ranks=all_ranks, sends=sends)
    ends.embed[0], ranks.kind[0] = 0, FORWARD
    ranks.kind[1] = BACKWARD if BACKWARD in kinds else IDLE
    rows = slice(NUM_FILLING_ROWS, NUM_FILLING_ROWS + num_acting)
    if what in _KINDS:
        assert _KINDS[what] in kinds, f"the program has no {what}"
        ranks.kind[rows, :acting] = _KINDS[what]
    else:
        getattr(ends, what)[rows] = 0
    return ranks, ends


def _idle_rows(
    num_rows: int, *, num_ranks: int, sends: bool
) -> tuple[RankColumns[np.ndarray], EndColumns[np.ndarray]]:
    """Rows in which nobody acts; a message, if any goes, goes along a straight pipe of the ranks."""
    zeros = np.zeros((num_rows, num_ranks), np.int32)
    values = {name: zeros.copy() for name in RankColumns._fields}
    values["inbox_read"][:] = _INPUT
    for column in ("from_below", "from_above", "from_self"):
        values[column][:] = _NUM_INBOX_SLOTS
    if sends:
        values["from_below"][:, 1:] = _ARRIVED
        values["from_above"][:, :-1] = _ARRIVED
    nothing, slot = np.full((num_rows, 1), NONE, np.int32), np.full((num_rows, 1), _INPUT, np.int32)
    ends = EndColumns(nothing.copy(), slot, nothing.copy(), np.full_like(slot, _ARRIVED), nothing.copy())
    return RankColumns(**values), ends
