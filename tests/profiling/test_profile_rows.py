"""The rows by which the executor times itself say what they are to say, and nothing else."""

import numpy as np
import pytest

from jaxpipe.lowering.segments import whole
from jaxpipe.lowering.table import BACKWARD, BACKWARD_WEIGHT, FORWARD, IDLE, NONE, WEIGHT
from jaxpipe.profiling.rows import NUM_FILLING_ROWS, rows_of, table_of

ALL = ("F", "B", "W", "BW")


@pytest.mark.parametrize(("what", "kind"), [("F", FORWARD), ("W", WEIGHT), ("BW", BACKWARD_WEIGHT)])
def test_only_the_rows_and_ranks_that_are_asked_for_act(what: str, kind: int) -> None:
    table = table_of(ALL, num_ranks=3, sends=False)
    ranks, ends = rows_of(table, what, num_rows=8, num_acting=4, num_ranks=2)
    assert ranks.kind[:, 0].tolist() == [FORWARD, BACKWARD, *[kind] * 4, IDLE, IDLE]
    assert ranks.kind[:, 2].tolist() == [FORWARD, BACKWARD, *[IDLE] * 6]
    assert ends.embed[:, 0].tolist() == [0, *[NONE] * 7]
    assert set(np.unique(ends.head)) == {NONE}


def test_an_end_of_the_pipe_leaves_the_ranks_idle() -> None:
    ranks, ends = rows_of(table_of(ALL, num_ranks=1, sends=False), "head", num_rows=5, num_acting=3)
    assert ranks.kind[NUM_FILLING_ROWS:].max() == IDLE
    assert ends.head[:, 0].tolist() == [NONE, NONE, 0, 0, 0]
    assert set(np.unique(ends.unembed)) == {NONE}


def test_the_program_has_code_for_all_that_can_be_asked_for() -> None:
    """A program is compiled of what its table uses: without a head in it, a head costs nothing."""
    (segment,) = whole(table_of(ALL, num_ranks=2, sends=True))
    (use,) = segment.uses
    assert use.kinds >= {FORWARD, BACKWARD, WEIGHT, BACKWARD_WEIGHT}
    assert use.embed == use.head == use.unembed == {0}
    assert (use.up, use.down) == (((0, 1),), ((1, 0),))


def test_rows_without_b_are_filled_by_f_alone() -> None:
    ranks, _ = rows_of(table_of(("F", "BW"), num_ranks=1, sends=False), "BW", num_rows=4, num_acting=1)
    assert ranks.kind[:, 0].tolist() == [FORWARD, IDLE, BACKWARD_WEIGHT, IDLE]


def test_messages_go_up_and_down_a_straight_pipe_or_nowhere() -> None:
    trash = 2
    silent = table_of(("F", "BW"), num_ranks=3, sends=False)
    assert all((getattr(silent.ranks, name) == trash).all() for name in ("from_below", "from_above"))
    table = table_of(("F", "BW"), num_ranks=3, sends=True)
    ranks, _ = rows_of(table, "F", num_rows=4, num_acting=0)
    assert ranks.from_below[0].tolist() == [trash, 1, 1]
    assert ranks.from_above[3].tolist() == [1, 1, trash]
