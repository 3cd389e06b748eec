"""Whole runs whose curves go to TensorBoard and Weights & Biases: killed, resumed, and without a network.

W&B is a fake (tests/curves/fake_wandb), which the process that sends finds in the place of the package.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from run_design import make_run, metrics_of

from jaxpipe.curves.event_file import EventFile
from jaxpipe.errors import StorageError
from jaxpipe.training.curves import Curves, write_record
from jaxpipe.training.trainer import train

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "curves" / "fake_wandb"

SMALL = [
    *("--model.hidden_size", "16", "--model.intermediate_size", "24", "--data.sequence_length", "16"),
    *("--mesh.pp", "2", "--pipeline.num_microbatches", "2", "--train.global_batch_size", "4"),
    *("--data.path", "jaxpipe/schedules/**/*.py", "--train.num_steps", "200", "--checkpoint.every", "70"),
    *("--train.eval_every", "20", "--train.eval_batches", "2", "--run.tensorboard", "--run.wandb", "demo"),
]


def start(directory: Path, *arguments: str, **variables: str) -> subprocess.Popen:
    path = os.pathsep.join(filter(None, [str(FAKE), os.environ.get("PYTHONPATH")]))
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    server = {"PYTHONPATH": path, "FAKE_WANDB": str(directory.parent / "server")}
    return subprocess.Popen(
        [sys.executable, "train.py", "configs/tiny.yaml", *SMALL, "--run.dir", str(directory), *arguments],
        cwd=ROOT,
        env=environment | server | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def until(condition, *, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def curves_of(records: list[dict]) -> dict[str, dict[int, float]]:
    """By name the points of each curve, as fp32; a step that comes twice is a failure."""
    curves: dict[str, dict[int, float]] = {}
    for record in records:
        for name, value in record.items():
            if name not in ("step", "final", "params_sha256"):
                curve = curves.setdefault(name, {})
                assert record["step"] not in curve
                curve[record["step"]] = float(np.float32(value))
    return curves


def of_tensorboard(directory: Path) -> dict[str, dict[int, float]]:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulators.EventAccumulator(str(directory), {"scalars": 0}).Reload()
    records = [
        {"step": point.step, tag: point.value}
        for tag in found.Tags()["scalars"]
        for point in found.Scalars(tag)
    ]
    return curves_of(records)


def timeless(curves: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    return {name: curve for name, curve in curves.items() if "second" not in name}


@pytest.mark.slow
def test_a_killed_run_that_goes_on_has_every_step_of_every_curve_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    directory, server = tmp_path / "run", tmp_path / "server"
    metrics = directory / "metrics.jsonl"
    with start(directory) as process:
        # 70 is saved, and steps beyond it are logged, which will be done again
        until(lambda: metrics.exists() and '{"step": 80,' in metrics.read_text())
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    # what was logged is sent nevertheless, by a process of its own
    until(lambda: any("finish" in row for row in lines_of(server)))
    assert lines_of(server)[-1] == {"finish": 1}
    with start(directory, "--checkpoint.resume") as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors

    records = lines_of(metrics)
    expected = curves_of(records)
    assert list(expected["loss"]) == list(range(1, 201))
    assert list(expected["eval_loss"]) == list(range(0, 201, 20))
    found = of_tensorboard(directory / "tensorboard")
    assert found == expected
    assert all(list(curve) == sorted(curve) for curve in found.values())

    rows = [{"step": row.pop("_step"), **row} for row in lines_of(server) if "_step" in row]
    assert [row["step"] for row in rows] == list(range(201))
    # what was done again took another time, and the one that W&B has is the first
    assert timeless(curves_of(rows)) == timeless(expected)
    first, second = (row["init"] for row in lines_of(server) if "init" in row)
    assert first["id"] == second["id"]
    assert second["config"]["optimizer"]["learning_rate"] == 0.003
    assert lines_of(server)[-1] == {"finish": 0, "params_sha256": records[-1]["params_sha256"]}


def test_what_fails_in_wandb_is_told_once_and_costs_no_step(tmp_path: Path) -> None:
    with start(tmp_path / "run", FAKE_WANDB_FAILS="1") as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert errors.count("Weights & Biases") == 1
    assert "RuntimeError: no network, says the fake" in errors
    assert [line["step"] for line in lines_of(tmp_path / "run" / "metrics.jsonl") if "loss" in line][
        -1
    ] == 200


def test_a_disk_that_is_full_is_told_by_the_name_of_the_event_file(tmp_path: Path) -> None:
    writer = pytest.importorskip("tensorboardX.record_writer").RecordWriter("/dev/full")
    with open(os.devnull, "w", encoding="utf-8") as file:
        curves = Curves(file, EventFile(tmp_path / "events", writer, flushed_at=-1e9))
        with pytest.raises(StorageError, match=r"/events must be written, but: No space left"):
            write_record(curves, {"step": 1, "loss": 2.0})
    with pytest.raises(OSError, match="No space left"):  # it tries once more
        writer.close()


def test_flops_per_token_are_the_same_for_any_mesh_microbatches_and_remat(text, tmp_path, capsys) -> None:
    changes: list[dict] = [
        {},
        {"mesh__pp": 2, "mesh__dp": 2, "mesh__zero": 1},
        {"mesh__pp": 2, "mesh__tp": 2},
        {"pipeline__num_microbatches": 8},
        {"pipeline__remat": "none", "pipeline__schedule": "zb_h1"},
    ]
    for index, change in enumerate(changes):
        assert train(make_run(tmp_path / str(index), text, **change), dry_run=True) == 0
    told = re.findall(r"FLOPs per token +([\d,]+)", capsys.readouterr().out)
    assert told == [f"{PER_TOKEN:,}"] * len(changes)


PER_TOKEN = 3 * (4 * (1024 + 512 + 544 + 2304) + 8224)
"""Of BASE by hand: in 4 layers q and o 2 x 2 x 16 x 16, k and v 2 x 2 x 16 x 8, attention 2 x 16 x 17 and
SwiGLU 3 x 2 x 16 x 24; a head of 2 x 16 x 257; three times that."""


def test_the_flops_of_a_logged_step_are_those_and_the_mfu_counts_every_device(text, tmp_path, capsys) -> None:
    other = {"mesh__pp": 2, "mesh__dp": 1, "pipeline__num_microbatches": 2, "pipeline__remat": "none"}
    for name, changes in {"base": {}, "other": other}.items():
        config = make_run(tmp_path / name, text, train__num_steps=1, run__peak_flops=1e9, **changes)
        assert train(config) == 0
        line = next(line for line in metrics_of(config) if "loss" in line)
        assert line["flops_per_second"] * line["step_seconds"] == pytest.approx(PER_TOKEN * 8 * 16)
        assert line["mfu"] == pytest.approx(line["flops_per_second"] / (config.mesh.pp * 1e9))
        assert f"mfu {line['mfu']:.1%}" in capsys.readouterr().out
