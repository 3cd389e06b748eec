"""The GPU check, where there is no GPU: it refuses, and its logic runs on CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_check import run_parts
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


def test_a_part_that_fails_is_told_and_the_others_still_run(capsys: pytest.CaptureFixture[str]) -> None:
    def broken():
        yield {"ok": True}
        raise RuntimeError("out of memory")

    rows = list(run_parts({"first": broken, "second": lambda: iter([{"ok": True}])}, only=None))
    assert [(row["part"], row["ok"]) for row in rows] == [("first", True), ("first", False), ("second", True)]
    assert rows[1]["error"] == "RuntimeError: out of memory"
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
