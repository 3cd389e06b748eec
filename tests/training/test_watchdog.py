"""Real processes without JAX: a thread hears their signals and watches their clock while they sit in C."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from jaxpipe.training.stopping.interrupt import stop_on_signals
from jaxpipe.training.stopping.standing import Standing, last_checkpoint, report

RUN = """
import hashlib, sys, time
from jaxpipe.training.stopping.interrupt import stop_on_signals
from jaxpipe.training.stopping.standing import Standing

def hang_in_c():
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # minutes in which Python runs no handler

standing = Standing(latest=lambda: 40)
with stop_on_signals(standing=standing, stop_timeout=1, step_timeout=1) as stop:
"""
PREPARE = RUN + "    standing.prepare('compiling the step'); print('there', flush=True); hang_in_c()"
SAVE = RUN + "    standing.begin('saving step 41'); print('there', flush=True); hang_in_c()"
STEP = RUN + "    standing.begin('step 41', is_timed=True); print('there', flush=True); hang_in_c()"
SLOW_DISK = STEP.replace("lambda: 40", "lambda: time.sleep(100)")
FAST_STEPS = (
    RUN
    + """
    standing.begin('saving step 40'); time.sleep(1.5)
    for step in range(41, 61):
        standing.begin(f'step {step}', is_timed=True); time.sleep(0.1)
print('done', flush=True)
"""
)
FROZEN = (
    RUN
    + """
    standing.begin('step 41', is_timed=True); print('there', flush=True)
    until = time.process_time() + 0.3  # a clock that stands still with the process
    while time.process_time() < until:
        pass
    standing.begin('saving step 41'); print('done', flush=True)
"""
)


class Process:
    def __init__(self, program: str, **pipes: int) -> None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes
        self.process = subprocess.Popen([sys.executable, "-c", program], text=True, **pipes)

    def there(self) -> "Process":
        assert self.process.stdout.readline() == "there\n"
        return self

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Code and stderr; all of these processes have little time."""
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


FULL_PIPE = (
    RUN.replace("stop_timeout=1, step_timeout=1", "stop_timeout=1")
    + """
    standing.begin('saving step 41')
    print('there', flush=True)
    while True:
        print('x' * 1000, flush=True)  # until nobody reads it any more
"""
)


@pytest.fixture
def start() -> Iterator:
    started = []

    def start(program: str, **pipes: int) -> Process:
        started.append(Process(program, **pipes))
        return started[-1]

    yield start
    for running in started:
        running.process.kill()
        running.process.wait()
        for pipe in filter(None, (running.process.stdout, running.process.stderr)):
            pipe.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_without_anything_new_is_left_at_once(start, number):
    running = start(PREPARE).there()
    began = time.monotonic()
    running.send(number)
    code, said = running.end()
    assert time.monotonic() - began < 0.9  # sooner than any limit
    assert code == 128 + number
    assert re.fullmatch(
        rf"train\.py: {number.name} while compiling the step \(for \d\.\d s, at .*\): no step was done, "
        r"nothing is lost\n",
        said,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_save_that_never_ends_is_given_up_in_time_after_a_signal(start, number):
    running = start(SAVE).there()
    began = time.monotonic()
    running.send(number)
    code, said = running.end()
    assert 0.9 < time.monotonic() - began < 5
    assert code == 128 + number
    announced, given_up = said.strip().split("\n")
    assert announced.startswith(f"{number.name}: stopping after the current step with a checkpoint")
    assert given_up.startswith(
        f"train.py: {number.name}: the run must end within run.stop_timeout=1 seconds, but it still is at "
        "saving step 41 (for 1."
    )
    assert given_up.endswith("that is given up, and the last checkpoint is that of step 40")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_pipe_that_nobody_reads_keeps_no_process_alive(start, number):
    """As when a pager holds the end of stdout and stderr, and both are full."""
    running = start(FULL_PIPE, stderr=subprocess.STDOUT).there()
    time.sleep(0.5)
    running.send(number)
    assert running.process.wait(timeout=20) == 128 + number


def test_a_second_ctrl_c_ends_a_process_at_once_that_sits_in_c(start):
    running = start(SAVE.replace("stop_timeout=1", "stop_timeout=100")).there()
    running.send(signal.SIGINT)
    assert running.process.stderr.readline() == "\n"
    assert "press Ctrl-C again" in running.process.stderr.readline()
    running.send(signal.SIGINT)
    assert running.end() == (130, "train.py: stopped at once; the last steps have no checkpoint\n")


def test_a_step_that_takes_too_long_says_where_it_stands(start):
    code, said = start(STEP).there().end()
    assert code == 1
    assert re.fullmatch(
        r"train\.py: run\.step_timeout=1 seconds must be enough for a step or a batch of an evaluation, but "
        r"the run still is at step 41 \(for 1\.\d s, at <string>:\d+ in hang_in_c\); the last checkpoint is "
        r"that of step 40; resume, with a higher limit if it was only slow\n",
        said,
    )


def test_a_disk_that_does_not_answer_keeps_no_process_alive(start):
    code, said = start(SLOW_DISK).there().end()
    assert code == 1
    assert "the disk of the checkpoints does not answer" in said


def test_fast_steps_and_what_is_no_step_are_never_ended(start):
    running = start(FAST_STEPS)
    assert running.process.communicate(timeout=20) == ("done\n", "")
    assert running.process.returncode == 0


def test_a_process_that_was_frozen_is_not_blamed_for_that_time(start):
    running = start(FROZEN).there()
    running.send(signal.SIGSTOP)
    time.sleep(2.5)  # longer than the limit, and than what counts as frozen
    running.send(signal.SIGCONT)
    assert running.end() == (0, "")


def test_the_cursor_that_a_bar_hides_comes_back(start):
    terminal, other_side = pty.openpty()
    running = start(STEP, stdout=other_side)
    os.close(other_side)
    assert running.end()[0] == 1
    shown = os.read(terminal, 1000)
    os.close(terminal)
    assert shown.endswith(b"\x1b[?25h")


def test_the_descriptor_of_whoever_heard_the_signals_before_comes_back():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    with stop_on_signals():
        pass
    assert signal.set_wakeup_fd(before) == writing
    os.close(reading)
    os.close(writing)


def test_the_report_names_the_process_and_the_innermost_place_in_the_package():
    standing = Standing(process="process 1 of 2")
    standing.begin("step 3")
    found = report(standing)
    assert re.fullmatch(
        r"step 3 \(for 0\.0 s, at jaxpipe/training/stopping/standing\.py:\d+ in \w+; process 1 of 2\)", found
    )


@pytest.mark.parametrize(
    ("latest", "said"),
    [(None, "there is no checkpoint yet"), (0, "step 0"), (7, "step 7")],
)
def test_the_last_checkpoint_is_named_or_that_there_is_none(latest, said):
    assert said in last_checkpoint(Standing(latest=lambda: latest))
