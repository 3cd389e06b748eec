"""``kill -9`` at random moments, thirty times: the run always resumes, and ends as if undisturbed."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUM_KILLS = 30
NUM_STEPS = 150

SMALL = [
    *("--model.hidden_size", "16", "--model.intermediate_size", "24", "--data.sequence_length", "16"),
    *("--mesh.pp", "2", "--pipeline.num_microbatches", "2", "--train.global_batch_size", "4"),
    *("--data.path", "jaxpipe/schedules/**/*.py", "--train.num_steps", str(NUM_STEPS)),
    *("--train.eval_every", "7", "--train.eval_batches", "2"),
]


def start(directory: Path, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "train.py", "configs/tiny.yaml", *SMALL, "--run.dir", str(directory), *arguments],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "XLA_FLAGS"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines_of(directory: Path) -> list[dict]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "second" not in key} for line in lines]


def until_a_random_moment(process: subprocess.Popen, directory: Path, chance: random.Random) -> None:
    """Half of them anywhere from the start of the process on, half while it trains, evaluates and saves."""
    if chance.random() < 0.5:
        time.sleep(chance.uniform(0, 5))
        return
    checkpoints = directory / "checkpoints"
    before = set(os.listdir(checkpoints)) if checkpoints.exists() else set()
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if checkpoints.exists() and set(os.listdir(checkpoints)) - before:
            break
        time.sleep(0.01)
    time.sleep(chance.uniform(0, 0.5))


@pytest.mark.slow
def test_a_run_that_is_killed_thirty_times_ends_as_an_undisturbed_one(tmp_path: Path):
    with start(tmp_path / "whole") as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    expected = lines_of(tmp_path / "whole")

    chance = random.Random(5)
    directory = tmp_path / "killed"
    arguments = ("--checkpoint.every", "1", "--checkpoint.keep", "2")
    progress = []
    for _ in range(NUM_KILLS):
        resume = ("--checkpoint.resume",) if (directory / "config.yaml").exists() else ()
        with start(directory, *arguments, *resume) as process:
            until_a_random_moment(process, directory, chance)
            process.kill()
            _, errors = process.communicate(timeout=60)
        assert process.returncode in (-9, 0), errors  # never that it refuses to go on
        assert "warning: not whole" not in errors, errors  # nor that a kill damages what was complete
        folders = directory / "checkpoints"
        progress.append(
            max((int(n) for n in os.listdir(folders) if n.isdigit()), default=0) if folders.exists() else 0
        )
    assert progress == sorted(progress)
    # it was killed in the midst of its work, and got on between
    assert progress[-1] < NUM_STEPS, progress
    assert len(set(progress)) > 8, progress

    with start(directory, *arguments, "--checkpoint.resume") as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert lines_of(directory) == expected
    assert expected[-1]["params_sha256"]
