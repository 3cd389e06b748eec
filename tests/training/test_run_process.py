"""``train.py`` as a process: exit codes, signals, kill -9."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SMALL = [
    *("--model.hidden_size", "16", "--model.intermediate_size", "24", "--data.sequence_length", "16"),
    *("--train.global_batch_size", "8", "--train.eval_every", "0", "--data.path", "jaxpipe/**/*.py"),
]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "train.py", "configs/tiny.yaml", *SMALL, *arguments]


def environment() -> dict[str, str]:
    """As a user has it: nobody asks for emulated devices."""
    return {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}


def start(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        command(*arguments),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines_of(directory: Path) -> list[dict]:
    path = directory / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_step(process: subprocess.Popen, directory: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while not any(line["step"] >= step for line in lines_of(directory)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no step within two minutes"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> str:
    """The hash after 40 steps; also shows that four devices are emulated without being asked."""
    directory = tmp_path_factory.mktemp("runs") / "whole"
    process = start("--train.num_steps", "40", "--run.dir", str(directory))
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "on 4 cpu devices" in output
    return lines_of(directory)[-1]["params_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_with_a_checkpoint_that_resumes_to_the_bit(undisturbed, tmp_path, number, code):
    directory = tmp_path / "run"
    arguments = ("--train.num_steps", "40", "--optimizer.decay_steps", "40", "--run.dir", str(directory))
    # more steps than can pass before the signal; the rate of each step is that of the short run
    process = start(*arguments[2:], "--train.num_steps", "100000")
    wait_for_step(process, directory, 3)
    process.send_signal(number)
    sent = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert time.monotonic() - sent < 60
    last = lines_of(directory)[-1]
    assert last["final"]
    assert (directory / "checkpoints" / str(last["step"])).is_dir()
    if last["step"] < 40:
        process = start(*arguments, "--checkpoint.resume")
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert lines_of(directory)[-1]["params_sha256"] == undisturbed


@pytest.mark.slow
def test_a_killed_run_resumes_and_ends_with_the_same_parameters(undisturbed, tmp_path):
    directory = tmp_path / "run"
    arguments = ("--train.num_steps", "40", "--checkpoint.every", "3", "--run.dir", str(directory))
    process = start(*arguments)
    for step in (7, 20):
        wait_for_step(process, directory, step)
        process.kill()
        process.communicate()
        process = start(*arguments, "--checkpoint.resume")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    lines = lines_of(directory)
    assert lines[-1]["params_sha256"] == undisturbed
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 41))


def test_devices_that_xla_flags_do_not_give_are_one_clear_error(tmp_path):
    flags = environment() | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        command("--run.dir", str(tmp_path / "run")),
        cwd=ROOT,
        env=flags,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "needs 4 devices, but there are 2" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_faults_of_the_configuration_are_told_all_at_once_with_exit_code_2():
    wrong = ["--optimizer.learnig_rate", "1", "--train.num_steps", "many", "--pipeline.schedule", "2f2b"]
    done = subprocess.run(
        command(*wrong), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    for words in ("learnig_rate", "learning_rate", "many", "2f2b", "zb_h1"):
        assert words in done.stderr
    assert "Traceback" not in done.stderr
