"""Runs of two processes with two emulated devices each, against runs of one process with four.

With (dp 2, pp 2) every sum between devices has two terms, so two processes give the bits of one. A sum over
four ranks has an order, and Gloo's is not that of one process.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from jaxpipe.checkpoint.manifest import read_manifest, share_of
from jaxpipe.errors import InputError
from jaxpipe.training import processes

ROOT = Path(__file__).parents[2]

SMALL = [
    *("--model.hidden_size", "16", "--model.intermediate_size", "24", "--data.sequence_length", "16"),
    *("--train.global_batch_size", "8", "--data.path", "jaxpipe/**/*.py", "--pipeline.num_microbatches", "4"),
    *("--checkpoint.every", "0", "--optimizer.decay_steps", "50", "--train.eval_batches", "2"),
]
SQUARE = ["--mesh.dp", "2", "--mesh.pp", "2"]
TIMEOUT = 10

JOIN = """
import sys
import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxpipe.config import DistributedConfig
from jaxpipe.training.global_arrays import to_devices
from jaxpipe.training.processes import joined

where, number, timeout = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
settings = DistributedConfig(coordinator=where, num_processes=2, process_id=number, timeout=timeout)
with joined(settings, num_devices=4):
    mesh = jax.make_mesh((4,), ("pp",), axis_types=(AxisType.Auto,))
    sharded, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("pp",), ()))
    total = jax.jit(lambda array: array.sum(), out_shardings=whole)
    array = to_devices(jax.numpy.arange(4.0), sharded)
    for step in range(10**9):
        assert float(total(array)) == 6
        if step == 5:
            print("sums", file=sys.stderr, flush=True)
"""
"""Two processes that sum for ever, as a run does, without a model."""

SAME = (
    JOIN.partition("with joined")[0]
    + """
from jaxpipe.training.processes import same_in_all

with joined(settings, num_devices=4):
    same_in_all({"data.path": ("a", "b"), "the text's digest": "0f", "model.rope_scaling": None})
    print("same", flush=True)
    same_in_all({"train.num_steps": 4 + number, "run.seed": 3, **({"extra": 0.5} if number else {})})
"""
)


class Several:
    """Processes of one run; on leaving, those that are still alive are killed."""

    def __init__(self, commands: Sequence[Sequence[str]], *, cache: bool = True) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
        environment |= {} if cache else {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.processes = [
            subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes) for command in commands
        ]

    def __enter__(self) -> "Several":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def end(self, timeout: float = 120) -> list[tuple[int, str, str]]:
        """Code, stdout and stderr of each."""
        said = [process.communicate(timeout=timeout) for process in self.processes]
        return [(process.returncode, *lines) for process, lines in zip(self.processes, said, strict=True)]


def run_command(directory: Path, *flags: str) -> list[str]:
    usual = [
        word for pair in zip(SMALL[::2], SMALL[1::2], strict=True) if pair[0] not in flags for word in pair
    ]
    return [sys.executable, "train.py", "configs/tiny.yaml", *usual, "--run.dir", str(directory), *flags]


def an_address() -> str:
    with socket.create_server(("localhost", 0)) as server:
        return f"localhost:{server.getsockname()[1]}"


def two(directory: Path, *flags: str, cache: bool = True) -> Several:
    """Start a run of two processes."""
    several = ["--distributed.coordinator", an_address(), "--distributed.num_processes", "2"]
    several += ["--distributed.timeout", "60"]
    return Several(
        [
            run_command(directory, *flags, *several, "--distributed.process_id", str(number))
            for number in (0, 1)
        ],
        cache=cache,
    )


def run(directory: Path, *flags: str, num_processes: int) -> None:
    """A whole run, in which process 0 alone says anything."""
    with (
        two(directory, *flags) if num_processes == 2 else Several([run_command(directory, *flags)]) as several
    ):
        (first, output, errors), *others = several.end()
        assert (first, errors) == (0, ""), errors
        assert "on 4 cpu devices" in output
        assert "Gloo" not in output
        assert others == [(0, "", "")] * (num_processes - 1)


def lines_of(directory: Path) -> list[dict]:
    """The metrics without what depends on the clock."""
    path = directory / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{key: value for key, value in line.items() if "second" not in key} for line in lines]


def copy(directory: Path, name: str) -> Path:
    return Path(shutil.copytree(directory, directory.with_name(name)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[int, Path]:
    """The directories of the same run in one process and in two."""
    folder = tmp_path_factory.mktemp("whole")
    for number in (1, 2):
        run(
            folder / str(number),
            *(*SQUARE, "--train.num_steps", "4", "--train.eval_every", "2", "--checkpoint.every", "1"),
            *("--checkpoint.keep", "3"),
            num_processes=number,
        )
    return {number: folder / str(number) for number in (1, 2)}


@pytest.mark.slow
def test_two_processes_give_the_bits_of_one_and_write_each_line_once(whole):
    assert lines_of(whole[2]) == lines_of(whole[1])
    assert [line["step"] for line in lines_of(whole[2])] == [0, 1, 2, 2, 3, 4, 4, 4]
    configs = [(whole[number] / "config.yaml").read_text() for number in (1, 2)]
    assert configs[0] == configs[1].replace(str(whole[2]), str(whole[1]))


@pytest.mark.slow
def test_one_process_resumes_what_two_have_saved_and_the_reverse_to_the_bit(whole):
    found = []
    for saved_by, resumed_by in ((1, 2), (2, 1)):
        directory = copy(whole[saved_by], f"{saved_by}-{resumed_by}")
        flags = ["--train.num_steps", "6", "--train.eval_every", "0", "--checkpoint.resume"]
        run(directory, *SQUARE, *flags, num_processes=resumed_by)
        found.append(lines_of(directory))
    assert found[0] == found[1]
    assert [line["step"] for line in found[0] if "loss" in line] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_two_processes_pass_over_a_damaged_checkpoint_together(whole):
    """The bit is in a file that process 1 hashes or in one that process 0 does: both go back to step 3."""
    expected = None
    for share in (0, 1):
        directory = copy(whole[2], f"damaged-{share}")
        folder = directory / "checkpoints" / "4"
        name = next(iter(share_of(read_manifest(folder).files, share, 2)))
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
        flags = ["--train.num_steps", "4", "--train.eval_every", "2", "--checkpoint.resume"]
        with two(directory, *SQUARE, *flags) as several:
            (first, output, errors), second = several.end()
        assert (first, second) == (0, (0, "", "")), errors
        assert errors.count("\n") == 1
        assert f"checkpoint 4 ({name} holds other bytes" in errors
        assert "after step 3" in output
        expected = expected or lines_of(whole[2])
        assert lines_of(directory) == expected


@pytest.mark.slow
def test_two_processes_skip_the_same_steps_and_end_together(tmp_path):
    flags = ["--train.num_steps", "9", "--train.non_finite", "skip", "--train.max_skipped_steps", "4"]
    flags += ["--optimizer.learning_rate", "1e15", "--optimizer.warmup_steps", "0", "--train.eval_every", "0"]
    with two(tmp_path / "run", *SQUARE, *flags) as several:
        (first, _, errors), (second, _, other_errors) = several.end()
    assert (first, second) == (1, 1)
    assert "train.max_skipped_steps=4 ends a run" in errors + other_errors
    assert "Traceback" not in errors + other_errors
    assert [line["skipped"] for line in lines_of(tmp_path / "run")] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_what_process_0_refuses_ends_all_with_its_code(whole):
    with two(whole[2], *SQUARE, "--train.num_steps", "4") as several:
        (first, _, errors), (second, output, other_errors) = several.end(timeout=60)
    assert (first, second) == (2, 2)
    assert "must hold no other run" in errors
    assert output == ""
    assert re.fullmatch(
        r"train\.py: process 0 has failed and says why; process 1 ends with it, while at .* \(for "
        r"\d+\.\d s, at jaxpipe/.*; process 1 of 2\)\n",
        other_errors,
    )


@pytest.mark.slow
def test_a_signal_to_one_process_ends_both_after_the_same_step_with_a_checkpoint(tmp_path):
    """Four ranks in two processes, so that each microbatch crosses from one to the other."""
    flags = ["--train.num_steps", "100000", "--train.eval_every", "0", "--mesh.pp", "4"]
    directory = tmp_path / "two"
    with two(directory, *flags) as several:
        wait_for_step(several, directory, 3)
        several.processes[1].send_signal(signal.SIGTERM)
        (first, _, errors), second = several.end()
    assert first == 143
    assert errors.strip() == ("SIGTERM of another process: stopping after the current step with a checkpoint")
    assert second == (143, "", "")
    lines = lines_of(directory)
    assert lines[-1]["final"]
    assert (directory / "checkpoints" / str(lines[-1]["step"])).is_dir()
    run(tmp_path / "one", *flags[2:], "--train.num_steps", "3", num_processes=1)
    for expected, found in zip(lines_of(tmp_path / "one")[:3], lines[:3], strict=True):
        # 1e-6: sums of four terms in another order
        assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_a_step_that_waits_for_a_frozen_process_ends_long_before_the_processes_time_out(tmp_path):
    flags = ["--train.num_steps", "100000", "--train.eval_every", "0", "--run.step_timeout", "4"]
    with two(tmp_path / "run", *flags) as several:
        wait_for_step(several, tmp_path / "run", 3)
        several.processes[1].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        _, errors = several.processes[0].communicate(timeout=60)
        assert time.monotonic() - began < 15  # silence alone would take 30
        assert several.processes[0].returncode == 1
    assert re.fullmatch(
        r"train\.py: run\.step_timeout=4 seconds must be enough .* the run still is at (the end of )?step "
        r"\d+ \(for \d\.\d s, at jaxpipe/.*; process 0 of 2\); there is no checkpoint yet; resume, .*\n",
        errors,
    )


@pytest.mark.slow
def test_a_signal_while_one_of_two_processes_compiles_ends_both_and_each_says_where_it_stood(tmp_path):
    with two(tmp_path / "run", "--train.eval_every", "0", cache=False) as several:
        while not several.processes[0].stdout.readline().startswith("slots per rank"):
            assert several.processes[0].poll() is None
        several.processes[1].send_signal(signal.SIGTERM)
        (first, _, errors), (second, _, other_errors) = several.end(timeout=60)
    assert (first, second) == (143, 143)
    assert "train.py: SIGTERM while " in other_errors
    assert "process 1 of 2): no step was done, nothing is lost" in other_errors
    assert "process 1 has failed and says why; process 0 ends with it, while at compiling the step" in errors


def wait_for_step(several: Several, directory: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while not any(line["step"] >= step for line in lines_of(directory)):
        assert all(process.poll() is None for process in several.processes), several.end()
        assert time.monotonic() < deadline, "no step within two minutes"
        time.sleep(0.05)


def summing(address: str) -> Several:
    command = [sys.executable, "-c", JOIN, address]
    return Several([[*command, str(number), str(TIMEOUT)] for number in (0, 1)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "sent", "said"),
    [(1, signal.SIGKILL, "has ended"), (0, signal.SIGKILL, "has ended"), (1, signal.SIGSTOP, "silent")],
)
def test_a_process_that_is_killed_or_frozen_ends_the_other_within_the_timeout(number, sent, said):
    with summing(an_address()) as several:
        for process in several.processes:
            assert process.stderr.readline() == "sums\n"
        several.processes[number].send_signal(sent)
        survivor = several.processes[1 - number]
        began = time.monotonic()
        code = survivor.wait(timeout=60)
        assert time.monotonic() - began < TIMEOUT + 5
        errors = survivor.stderr.read()
    if number == 0 and code == -signal.SIGABRT:  # JAX may be faster to miss its coordinator
        assert "JAX distributed service detected fatal errors" in errors
    else:
        assert code == 1, errors
        assert f"process {number} has" in errors
        assert said in errors


def test_a_process_whose_peers_never_come_gives_up_and_says_where_it_waited():
    address = an_address()
    with Several([[sys.executable, "-c", JOIN, address, "1", "5"]]) as alone:
        ((code, output, errors),) = alone.end()
    assert (code, output) == (1, "")
    assert errors == (
        "train.py: all 2 processes must have joined within distributed.timeout=5 seconds, but this one, "
        f"process 1, has waited for the others at {address} in vain: two may have the same process_id, one "
        "another address, or one has refused to start; see what the others say, or raise the timeout\n"
    )


def test_a_signal_while_the_others_are_awaited_ends_at_once(tmp_path):
    """Inside JAX, where Python's handlers never run."""
    address = an_address()
    settings = ["--distributed.coordinator", address, "--distributed.num_processes", "2"]
    command = run_command(tmp_path / "run", *settings, "--distributed.process_id", "0")
    with Several([command]) as alone:
        wait_until_it_listens(address)
        alone.processes[0].send_signal(signal.SIGINT)
        ((code, output, errors),) = alone.end(timeout=20)
    assert (code, output) == (130, "")
    assert errors.startswith("train.py: SIGINT while joining the other processes (for ")
    assert errors.count("\n") == 1


def wait_until_it_listens(address: str) -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(ConnectionRefusedError), socket.create_connection((host, int(port))):
            return
        time.sleep(0.05)
    raise AssertionError("nobody listens")


def test_a_port_that_is_taken_is_told_before_jax_stumbles_over_it():
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
        with Several([[sys.executable, "-c", JOIN, address, "0", "20"]]) as alone:
            ((code, output, errors),) = alone.end()
    assert (code, output) == (2, "")
    assert errors == (
        f"train.py: process 0 must be able to listen at distributed.coordinator={address}, but: "
        "Address already in use; name a port that is free there, in all processes\n"
    )


def test_processes_that_differ_name_each_value_that_does_as_both_have_it(monkeypatch):
    first = {"train.num_steps": 4, "data.path": ["a", "b"], "run.seed": 3, "gone": None}
    monkeypatch.setattr(processes, "_text_of_first", lambda _: as_process_0_sends(first))
    own = {"train.num_steps": 5, "data.path": ("a", "b"), "run.seed": 3}
    with pytest.raises(InputError, match=r"0: train.num_steps is 5 here and 4 there, gone is missing here"):
        processes.same_in_all(own)
    processes.same_in_all(own | {"train.num_steps": 4, "gone": None})


def as_process_0_sends(values: dict) -> str:
    sent = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "_text_of_first", lambda text: sent.append(text) or text)
        processes.same_in_all(values)
    return sent[0]


@pytest.mark.slow
def test_two_processes_compare_their_values_through_jax():
    command = [sys.executable, "-c", SAME, an_address()]
    with Several([[*command, str(number), "60"] for number in (0, 1)]) as several:
        (first, output, errors), (second, other_output, other_errors) = several.end()
    assert (first, output, errors) == (
        *(2, "same\n"),
        "train.py: process 1 has failed and says why; process 0 ends with it\n",
    )
    assert (second, other_output) == (2, "")
    assert other_errors == (
        "train.py: all processes must have the same configuration and text, but process 1 differs from "
        "process 0: train.num_steps is 5 here and 4 there, extra is 0.5 here and missing there; start all "
        "with the same files and flags\n"
    )


def test_what_nccl_writes_to_stdout_arrives(capfd):
    processes._keep_stdout_clean([Namespace(platform="gpu")])
    os.write(1, b"NCCL INFO\n")
    assert capfd.readouterr().out == "NCCL INFO\n"


def test_a_dry_run_of_two_processes_waits_for_nobody_and_is_told_once(tmp_path):
    with two(tmp_path / "none", *SQUARE, "--dry-run") as several:
        (first, output, errors), other = several.end()
    assert (first, errors) == (0, "")
    assert "on 4 cpu devices" in output
    assert other == (0, "", "")
