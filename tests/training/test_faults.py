"""``train.py`` as a process that is disturbed: by signals in each phase, slow steps, full disks.

Whatever happens, it ends soon with the code that is documented and no traceback, and a resumed run ends
with the parameters of one that nobody disturbed.
"""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIGNALS = [signal.SIGINT, signal.SIGTERM]
STEPS = 12
SAVED = 4

SMALL = {
    "--model.hidden_size": "16",
    "--model.intermediate_size": "24",
    "--data.path": "jaxpipe/**/*.py",
    "--data.sequence_length": "16",
    "--data.validation_fraction": "0.4",
    "--train.num_steps": str(STEPS),
    "--train.global_batch_size": "8",
    "--train.eval_every": "0",
    "--optimizer.decay_steps": str(STEPS),
    "--checkpoint.every": "0",
}
LARGE = {
    "--model.hidden_size": "384",
    "--model.intermediate_size": "1024",
    "--data.path": "jaxpipe/**/*.py",
    "--train.global_batch_size": "64",
    "--train.eval_every": "0",
}
"""Steps of several seconds."""

NO_CACHE = {"JAX_ENABLE_COMPILATION_CACHE": "false"}

LIMIT = 8192
"""Bytes that a file may have: a configuration, a few dozen lines of metrics."""


def program(limit: int | None) -> list[str]:
    """``train.py``; no file that it writes may outgrow ``limit`` bytes."""
    if limit is None:
        return [sys.executable, "train.py"]
    limits = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    start = "runpy.run_path('train.py', run_name='__main__')"
    return [sys.executable, "-c", f"import resource, runpy; {limits}; {start}"]


class Run:
    """``train.py`` as a process."""

    def __init__(self, *flags: str, small: bool = True, limit: int | None = None, **options) -> None:
        """``limit``: how many bytes a file may have."""
        inherited = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
        options["env"] = inherited | options.get("env", {})
        usual = [(flag, value) for flag, value in (SMALL if small else LARGE).items() if flag not in flags]
        self.process = subprocess.Popen(
            [*program(limit), "configs/tiny.yaml", *itertools.chain(*usual), *flags],
            cwd=ROOT,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options,
        )

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not what():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def wait_for_line(self, start: str) -> None:
        while not (line := self.process.stdout.readline()).startswith(start):
            assert line, self.process.communicate()

    def send(self, number: int) -> tuple[int, str]:
        """Code and stderr after this signal; within a minute."""
        self.process.send_signal(number)
        return self.end(timeout=60)

    def end(self, *, timeout: float = 120) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=timeout)
        assert "Traceback" not in errors
        return self.process.returncode, errors


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def start(*flags: str, **options) -> Run:
        started.append(Run(*flags, **options))
        return started[-1]

    yield start
    for run in started:
        run.process.kill()
        run.process.wait()
        for pipe in filter(None, (run.process.stdout, run.process.stderr)):
            pipe.close()


def lines_of(directory: Path) -> list[dict]:
    path = directory / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def saved_steps(directory: Path) -> set[int]:
    return {int(path.name) for path in (directory / "checkpoints").iterdir() if path.name.isdigit()}


def is_saving(directory: Path) -> bool:
    """Whether a checkpoint is being written, in a folder of another name."""
    return any(not path.name.isdigit() for path in (directory / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """A whole run with its checkpoint of step 4; it says which flags make it deterministic."""
    directory = tmp_path_factory.mktemp("runs") / "whole"
    flags = ["--checkpoint.every", str(SAVED), "--checkpoint.keep", "9", "--run.deterministic"]
    devices = "--xla_force_host_platform_device_count=4"
    run = Run("--run.dir", str(directory), *flags, env={"XLA_FLAGS": devices})
    output, errors = run.process.communicate(timeout=120)
    assert (run.process.returncode, errors) == (0, "")
    assert re.search(
        rf"^deterministic +XLA_FLAGS={devices} --xla_gpu_deterministic_ops=true$", output, re.MULTILINE
    )
    assert "deterministic: true" in (directory / "config.yaml").read_text()
    return directory


@pytest.fixture
def begun(undisturbed, tmp_path) -> Path:
    """The same run as it was after step 4."""
    directory = Path(shutil.copytree(undisturbed, tmp_path / "begun"))
    for step in saved_steps(directory) - {SAVED}:
        shutil.rmtree(directory / "checkpoints" / str(step))
    return directory


def assert_it_resumes_as_if_undisturbed(
    start: Callable[..., Run], directory: Path, undisturbed: Path
) -> None:
    run = start("--run.dir", str(directory), "--checkpoint.resume")
    assert run.end() == (0, "")
    assert lines_of(directory)[-1] == lines_of(undisturbed)[-1]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_jax_is_there_ends_quietly_and_leaves_nothing(start, tmp_path, number):
    run = start("--run.dir", str(tmp_path / "run"))
    status = Path(f"/proc/{run.process.pid}/status")
    run.wait_for(lambda: catches(status, signal.SIGTERM))
    assert run.send(number) == (128 + number, "")
    assert not (tmp_path / "run").exists()


def catches(status: Path, number: int) -> bool:
    """Whether the process has a handler for this signal, as the kernel says."""
    caught = re.search(r"^SigCgt:\s*(\w+)$", status.read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_during_compilation_ends_at_once(start, undisturbed, tmp_path, number):
    directory = tmp_path / "run"
    run = start("--run.dir", str(directory), env=NO_CACHE)
    run.wait_for_line("slots per rank")
    time.sleep(1)
    code, errors = run.send(number)
    assert code == 128 + number
    assert f"{number.name} while compiling the step (for " in errors
    assert "no step was done, nothing is lost" in errors
    assert errors.count("\n") == 1
    assert saved_steps(directory) == set()
    if number == signal.SIGTERM:
        assert_it_resumes_as_if_undisturbed(start, directory, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_during_an_evaluation_ends_with_a_checkpoint(start, undisturbed, begun, number, code):
    flags = ["--train.eval_every", "1", "--train.eval_batches", "2000", "--checkpoint.resume"]
    run = start("--run.dir", str(begun), *flags)
    step = SAVED + 1
    run.wait_for(lambda: lines_of(begun)[-1]["step"] == step)
    found, errors = run.send(number)
    assert found == code
    assert f"{number.name}: stopping after the current step with a checkpoint" in errors
    lines = lines_of(begun)
    assert not any("eval_loss" in line and line["step"] == step for line in lines)
    assert (lines[-1]["step"], saved_steps(begun)) == (step, {SAVED, step})
    assert_it_resumes_as_if_undisturbed(start, begun, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_during_a_save_ends_with_that_checkpoint(start, undisturbed, begun, number, code):
    run = start("--run.dir", str(begun), "--checkpoint.every", "1", "--checkpoint.resume")
    run.wait_for(lambda: lines_of(begun)[-1]["step"] > SAVED and is_saving(begun))
    assert run.send(number)[0] == code
    last = lines_of(begun)[-1]
    assert last["final"]
    assert SAVED < last["step"] < STEPS
    assert max(saved_steps(begun)) == last["step"]
    assert not is_saving(begun)
    assert_it_resumes_as_if_undisturbed(start, begun, undisturbed)


@pytest.mark.slow
def test_a_step_longer_than_the_stop_timeout_is_given_up(start, tmp_path):
    run = start("--run.dir", str(tmp_path / "run"), "--run.stop_timeout", "1", small=False)
    run.wait_for(lambda: bool(lines_of(tmp_path / "run")))
    began = time.monotonic()
    code, errors = run.send(signal.SIGTERM)
    assert time.monotonic() - began < 10
    assert code == 143
    assert "SIGTERM: the run must end within run.stop_timeout=1 seconds, but it still is at" in errors
    assert errors.endswith("that is given up, and there is no checkpoint yet\n")


@pytest.mark.slow
def test_a_step_longer_than_the_step_timeout_ends_the_run_and_says_where_it_stands(start, tmp_path):
    run = start("--run.dir", str(tmp_path / "run"), "--run.step_timeout", "1", small=False)
    code, errors = run.end()
    assert code == 1
    assert re.fullmatch(
        r"train\.py: run\.step_timeout=1 seconds must .* still is at (the end of )?step [12] "
        r"\(for 1\.\d s, at jaxpipe/training/\w+\.py:\d+ in \w+\); there is no checkpoint yet; resume.*\n",
        errors,
    )


@pytest.mark.slow
def test_a_batch_of_an_evaluation_has_the_same_limit(start, tmp_path):
    flags = ["--train.eval_every", "9", "--train.global_batch_size", "256", "--run.step_timeout", "1"]
    code, errors = start("--run.dir", str(tmp_path / "run"), *flags, small=False).end()
    assert code == 1
    assert re.search(
        r"still is at evaluation after step 0, batch 1 of \d \(for 1\.\d s, at jaxpipe/\w+/\w+\.py:\d+",
        errors,
    )


DIVERGING = ["--optimizer.learning_rate", "1e15", "--optimizer.warmup_steps", "0"]
"""From the second step on nothing is finite."""


@pytest.mark.slow
def test_a_run_that_diverges_names_the_leaves_and_saves_nothing_that_is_not_finite(start, tmp_path):
    run = start("--run.dir", str(tmp_path / "run"), "--checkpoint.every", "1", *DIVERGING)
    code, errors = run.end()
    assert code == 1
    assert re.fullmatch(
        r"train\.py: step 2: training must stay finite, but it has loss nan .* the sum of squares is not "
        r"finite in \d+ of \d+ gradients, in the order of the backward pass: head, final.*layers\.3\..*\n",
        errors,
    )
    assert saved_steps(tmp_path / "run") == {1}


@pytest.mark.slow
def test_a_run_skips_what_is_not_finite_until_it_is_too_much(start, tmp_path):
    flags = ["--train.non_finite", "skip", "--train.max_skipped_steps", "3", *DIVERGING]
    run = start("--run.dir", str(tmp_path / "run"), "--checkpoint.every", "1", *flags)
    code, errors = run.end()
    assert code == 1
    assert "step 4: train.max_skipped_steps=3 ends a run that skipped so many in a row" in errors
    assert [line["skipped"] for line in lines_of(tmp_path / "run") if "loss" in line] == [0, 1, 2, 3]
    assert max(saved_steps(tmp_path / "run")) <= 3


@pytest.mark.slow
def test_a_flipped_bit_costs_a_run_the_steps_since_the_checkpoint_before(start, undisturbed, tmp_path):
    directory = Path(shutil.copytree(undisturbed, tmp_path / "run"))
    steps = sorted(saved_steps(directory))
    assert steps == [4, 8, 12]
    path = max((directory / "checkpoints" / "12" / "arrays").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)
    run = start("--run.dir", str(directory), "--checkpoint.resume")
    code, errors = run.end()
    assert code == 0
    assert re.fullmatch(
        r"train\.py: warning: not whole, and set aside .*: checkpoint 12 \(arrays/.* holds other bytes than "
        r"were written\); the run resumes from step 8 instead\n",
        errors,
    )
    assert lines_of(directory)[-1] == lines_of(undisturbed)[-1]
    assert (directory / "checkpoints" / "12.damaged").is_dir()


@pytest.mark.slow
def test_the_same_deterministic_run_gives_the_same_bits_and_no_fast_step_is_ended(
    start, undisturbed, tmp_path
):
    directory = tmp_path / "again"
    flags = ["--run.deterministic", "--run.step_timeout", "10", "--train.eval_every", "3"]
    assert start("--run.dir", str(directory), *flags).end() == (0, "")
    assert lines_of(directory)[-1] == lines_of(undisturbed)[-1]


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_a_sentence_and_the_last_good_checkpoint(start, undisturbed, begun):
    """A file cannot outgrow a limit; the metrics are the first to try."""
    flags = ["--train.num_steps", "100000", "--checkpoint.resume"]
    run = start("--run.dir", str(begun), *flags, limit=LIMIT, env=NO_CACHE)
    code, errors = run.end()
    assert (code, errors) == (
        1,
        f"train.py: {begun.resolve() / 'metrics.jsonl'} must be written, but: File too large; make room "
        "there, then go on with --checkpoint.resume\n",
    )
    assert (begun / "metrics.jsonl").stat().st_size == LIMIT
    assert saved_steps(begun) == {SAVED}
    assert_it_resumes_as_if_undisturbed(start, begun, undisturbed)


@pytest.mark.slow
def test_a_save_that_the_disk_has_no_room_for_ends_the_run_and_costs_no_older_one(start, undisturbed, begun):
    """The metrics fit, the arrays of a checkpoint do not; only one checkpoint is to be kept."""
    flags = ["--checkpoint.every", "2", "--checkpoint.keep", "1", "--checkpoint.resume"]
    run = start(
        "--run.dir",
        str(begun),
        *flags,
        limit=4 * LIMIT,
        env=NO_CACHE,
    )
    code, errors = run.end()
    assert code == 1
    assert errors.count("\n") == 1
    assert f"checkpoint {begun.resolve() / 'checkpoints' / '6'} could not be written: " in errors
    assert "File too large" in errors
    assert errors.endswith("free space, then resume from step 4\n")
    assert [path.name for path in (begun / "checkpoints").iterdir()] == ["4"]
    assert_it_resumes_as_if_undisturbed(start, begun, undisturbed)


@pytest.mark.slow
def test_a_full_file_of_standard_output_ends_the_run_with_a_sentence(start, tmp_path):
    with (tmp_path / "log").open("w") as log:
        log.write("x" * LIMIT)
        log.flush()
        run = start("--run.dir", str(tmp_path / "run"), stdout=log, limit=LIMIT, env=NO_CACHE)
        assert run.end() == (
            1,
            "train.py: the standard output must be written, but: File too large; make room there, then go on "
            "with --checkpoint.resume\n",
        )


@pytest.mark.parametrize("flags", [["--dry-run"], ["--help"]])
def test_whoever_reads_only_the_first_line_gets_no_traceback(start, flags):
    run = start(*flags)
    assert run.process.stdout.readline()
    run.process.stdout.close()
    errors = run.process.stderr.read()
    assert run.process.wait(timeout=60) in (0, 1)  # 0: all was in the pipe before it was closed
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors
    assert errors.count("\n") == run.process.returncode
