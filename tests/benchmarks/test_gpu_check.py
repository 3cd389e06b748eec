"""The GPU check, where there is no GPU: it refuses, and its logic runs on CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_loops, gpu_speed
from benchmarks.gpu_check import deadlines, run_parts
from benchmarks.gpu_numerics import RUNS, check_attention, check_executor
from benchmarks.gpu_speed import WORKLOADS
from jaxpipe.models.flops import flops_per_token

ROOT = Path(__file__).parents[2]


def gpu_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "benchmarks/gpu_check.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def test_without_a_gpu_it_says_so_and_exits_with_2() -> None:
    run = gpu_check()
    assert run.returncode == 2
    assert "needs one GPU" in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


def test_model_flops_of_the_large_workload_are_those_of_the_formula() -> None:
    # a layer: q and o 2048 x 2048, k and v 2048 x 512, SwiGLU 3 x 2048 x 8192; the head 2048 x 32768
    layer = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192
    attention = 6 * 16 * 2048 * 2049
    assert flops_per_token(WORKLOADS["1b"].model, 2048) == 6 * (16 * layer + 2048 * 32768) + attention


@pytest.mark.slow
def test_its_checks_hold_on_cpu() -> None:
    rows = [*check_attention("cpu"), *check_executor("cpu", RUNS[-1:])]
    assert [row["dtype"] for row in rows] == ["bfloat16", "float32", "bfloat16"]
    assert all(row["ok"] and 0 < row["error"] <= row["tolerance"] for row in rows)
    assert all(row["loss_error"] < 1e-3 for row in rows[1:])


@pytest.mark.slow
def test_speed_tells_bytes_and_ratio_and_loops_the_cost_of_dynamic_trips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_speed, "VARIANTS", {"none": (True,)})
    tiny, no_deadline = WORKLOADS["tiny"], float("inf")
    rows = list(gpu_speed.measure(tiny, "cpu", peak_tflops=1.0, num_rounds=1, deadline=no_deadline))
    assert [row["program"] for row in rows] == ["unpipelined", "executor, BW", "executor, BW"]
    assert all(row["ratio_min"] <= row["ratio_to_unpipelined"] <= row["ratio_max"] for row in rows[:2])
    assert rows[2]["ok"]
    assert 0.9 < rows[2]["predicted_bytes"] / rows[2]["compiled_bytes"] < 1.1
    static, dynamic = gpu_loops.measure(tiny, "cpu", num_rounds=1, deadline=no_deadline)
    assert (static["layers_per_stage"], dynamic["layers_per_stage"]) == ((2, 2), (3, 1))
    assert static["ratio_to_static"] == 1 != dynamic["ratio_to_static"]


def test_what_begins_too_late_is_told_as_missing() -> None:
    late = {"num_rounds": 1, "deadline": -1.0}
    rows = [
        *gpu_speed.measure(WORKLOADS["tiny"], "cpu", peak_tflops=1.0, **late),
        *gpu_loops.measure(WORKLOADS["tiny"], "cpu", **late),
    ]
    assert len(rows) == 3
    assert all(row["ok"] is False and "time was up" in row["error"] for row in rows)


def test_parts_share_the_time_of_those_that_run() -> None:
    shared = deadlines(100.0, 110.0, only=None)
    assert shared == {"attention": 110.0, "numerics": 140.0, "speed": 190.0, "loops": 210.0}
    assert deadlines(100.0, 70.0, only=["speed", "loops"])["speed"] == 150.0


def test_a_part_that_fails_is_told_and_the_others_still_run(capsys: pytest.CaptureFixture[str]) -> None:
    def broken():
        yield {"ok": True}
        raise RuntimeError("out of memory")

    rows = list(run_parts({"first": broken, "second": lambda: iter([{"ok": True}])}, only=None))
    assert [(row["part"], row["ok"]) for row in rows] == [("first", True), ("first", False), ("second", True)]
    assert rows[1]["error"] == "RuntimeError: out of memory"
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
