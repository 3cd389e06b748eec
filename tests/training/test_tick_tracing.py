"""A run whose ticks are timed ends as one whose are not, and says what each rank did in each tick."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from run_design import metrics_of, resumed, run

from jaxpipe.cli import main
from jaxpipe.lowering import lower
from jaxpipe.planning.tick_file import read_ticks
from jaxpipe.schedules import build
from jaxpipe.training.tick_tracing import actions_of, ends_of, on_one_clock


def test_a_run_that_times_a_step_ends_with_the_same_bits_and_is_explained(make_config, capsys):
    changes = {"mesh__pp": 2, "mesh__dp": 2, "pipeline__schedule": "zb_h1"}
    plain, timed = make_config("plain", **changes), make_config("timed", run__trace_step=5, **changes)
    timed = dataclasses.replace(timed, run=dataclasses.replace(timed.run, dir=plain.run.dir + "-timed"))
    assert run(timed) == run(plain)
    assert [line["loss"] for line in metrics_of(timed)[:5]] == [
        line["loss"] for line in metrics_of(plain)[:5]
    ]
    folder = Path(timed.run.dir)
    assert [path.name for path in folder.glob("ticks*")] == ["ticks-5.json"]
    trace = read_ticks(folder / "ticks-5.json")
    table = lower(build("zb_h1", num_ranks=2, num_microbatches=4))
    assert trace.actions == actions_of(table)
    assert trace.ends == ends_of(table)
    assert len(trace.plain_seconds) == 2
    assert trace.is_warm
    assert trace.before + trace.after < trace.step_seconds
    assert trace.run["mesh"] == {"dp": 2, "pp": 2, "tp": 1}
    assert trace.run["microbatch_tokens"] == 16
    capsys.readouterr()
    assert main(["explain", str(folder)]) == 0
    assert "Step 5: zb_h1 of 2 ranks and 4 microbatches" in capsys.readouterr().out
    # long past it, a resumed run times nothing
    (folder / "ticks-5.json").unlink()
    run(resumed(timed, train={"num_steps": 6}))
    assert not (folder / "ticks-5.json").exists()


def test_actions_and_ends_are_those_that_each_tick_of_the_table_has():
    table = lower(build("1f1b", num_ranks=2, num_microbatches=1), fuse_backward=True)
    assert [[action and str(action) for action in row] for row in actions_of(table)] == [
        ["0F0", None],
        [None, "1F0"],
        [None, "1BW0"],
        ["0BW0", None],
        [None, None],
    ]
    assert ends_of(table) == (("embed",), (), ("head",), (), ("unembed",))


@pytest.mark.parametrize("off", [0, 3_000, 5_000_000_000_000, -7_000_000])
def test_clocks_of_other_hosts_are_set_by_what_all_ranks_do_together(off):
    """Off by less than the ends of a pipe can show, a clock is left as it is: it may be the same one."""
    rng = np.random.default_rng(0)
    true = np.zeros((6, 4, 4), np.int64)
    now = np.zeros(4, np.int64)
    for tick in range(6):
        true[tick, :, 0] = now
        true[tick, :, 1] = now.max() + 10_000 + rng.integers(0, 2_000, 4)
        true[tick, :, 2] = true[tick, :, 1] + rng.integers(0, 50_000, 4)
        now = true[tick, :, 3] = true[tick, :, 2] + 1_000
    seen = true + np.array([0, 0, off, off])[:, None] + 10**12
    aligned, error = on_one_clock(seen, (0, 0, 1, 1), [True] * 6)
    wrong = np.abs(aligned - 10**12 - true).max()
    assert wrong <= max(error, 12_000)
    assert (error > 0) == (abs(off) > 12_000)
    assert (aligned[:, :2] == seen[:, :2]).all()
