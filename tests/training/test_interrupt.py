"""Real processes get real signals while they take a step."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from jaxpipe.training.stopping.interrupt import stop_on_signals

# Each "step" ends when its file descriptor says so, so that the test decides what a signal interrupts.
LOOP = """
import sys
from jaxpipe.training.stopping.interrupt import stop_on_signals

with stop_on_signals() as stop:
    for step in range(1, 100):
        print("step", step, flush=True)
        sys.stdin.readline()
        if stop:
            print("checkpoint", step, stop.received.name, flush=True)
            break
sys.exit(stop.exit_code)
"""


class Run:
    """A process that takes a step whenever it is told to."""

    def __init__(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, "-c", LOOP], text=True, **pipes)
        assert self.line() == "step 1"

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def announced(self) -> str:
        """What the first signal prints; when it is there, the signal has been handled."""
        assert self.process.stderr.readline() == "\n"
        return self.process.stderr.readline().strip()

    def finish_step(self) -> tuple[str, str, int]:
        out, err = self.process.communicate("\n", timeout=30)
        return out.strip(), err.strip(), self.process.returncode


@pytest.fixture
def run():
    running = Run()
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_first_signal_stops_after_the_step_with_a_checkpoint(run: Run, number, code):
    run.process.send_signal(number)
    assert run.announced().startswith(f"{number.name}: stopping after the current step with a checkpoint")
    assert run.finish_step() == (f"checkpoint 1 {number.name}", "", code)


def test_a_second_sigterm_is_ignored(run: Run):
    run.process.send_signal(signal.SIGTERM)
    run.announced()
    run.process.send_signal(signal.SIGTERM)
    assert run.finish_step() == ("checkpoint 1 SIGTERM", "", 143)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_later_sigint_stops_at_once(run: Run, first):
    run.process.send_signal(first)
    run.announced()
    time.sleep(0.5)  # else SIGTERM and SIGINT would be one request
    run.process.send_signal(signal.SIGINT)
    out, err = run.process.communicate(timeout=30)
    assert out == ""
    assert err.strip() == "train.py: stopped at once; the last steps have no checkpoint"
    assert run.process.returncode == 130


def test_a_sigterm_after_sigint_changes_nothing(run: Run):
    run.process.send_signal(signal.SIGINT)
    run.announced()
    time.sleep(0.5)  # else both would be one request
    run.process.send_signal(signal.SIGTERM)
    assert run.finish_step() == ("checkpoint 1 SIGINT", "", 0)


def test_both_signals_at_once_are_one_request_in_whatever_order_they_arrive(run: Run):
    """Of signals that wait for a stopped process, the one of the higher number is heard first."""
    run.process.send_signal(signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGTERM)
    run.process.send_signal(signal.SIGCONT)
    assert run.announced().split(":")[0] in ("SIGTERM", "SIGINT")
    out, _, code = run.finish_step()
    assert (out, code) == ("checkpoint 1 SIGTERM", 143)


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_a_sigterm_right_after_a_sigint_makes_the_code_its_own(run: Run, pause):
    run.process.send_signal(signal.SIGINT)
    run.announced()
    time.sleep(pause)
    run.process.send_signal(signal.SIGTERM)
    run.announced()
    out, _, code = run.finish_step()
    assert (out, code) == ("checkpoint 1 SIGTERM", 143)


def test_nobody_left_to_read_does_not_stop_the_checkpoint(run: Run):
    run.process.stderr.close()
    run.process.send_signal(signal.SIGTERM)
    run.process.stdin.write("\n")
    run.process.stdin.flush()
    lines = [run.line()]
    if lines == ["step 2"]:  # the step ended before the signal came
        run.process.stdin.write("\n")
        run.process.stdin.flush()
        lines = [run.line()]
    assert lines[0].startswith("checkpoint")
    assert run.process.wait(timeout=30) == 143


def test_the_old_handlers_come_back_also_after_an_error():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    during = {}

    def fail() -> None:
        with stop_on_signals():
            during.update({number: signal.getsignal(number) for number in before})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert all(during[number] != before[number] for number in before)
    assert {number: signal.getsignal(number) for number in before} == before


def test_no_signal_means_go_on_and_exit_code_zero():
    with stop_on_signals() as stop:
        assert not stop
        assert stop.received is None
        assert stop.exit_code == 0


def test_a_signal_that_comes_while_another_thread_works_reaches_the_loop(capfd):
    with stop_on_signals() as stop:
        sender = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM))
        sender.start()
        sender.join()
        assert stop.received == signal.SIGTERM
    assert "SIGTERM: stopping" in capfd.readouterr().err
