"""One thread that hears signals and watches the clock, also while the main thread sits inside XLA.

Python runs signal handlers in the main thread between two bytecodes: a step, a compilation or a collective
that never ends never lets it. The C-level handler, though, writes each signal's number to the descriptor of
``signal.set_wakeup_fd``, and this thread reads it there. It ends the process, by a sentence and ``_exit``:

    signal while nothing is new yet         at once                         128 + signal
    a second Ctrl-C                         at once                         130
    a first signal, but still there         after ``stop_timeout`` seconds  128 + signal
    a step or a batch of an evaluation      after ``step_timeout`` seconds  1

A process that was itself frozen (Ctrl-Z, a suspended host) is not blamed for that time.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jaxpipe.training.stopping.standing import Activity, Standing, last_checkpoint, report

TIMED_OUT = 1
"""The code with which a process ends because a step has taken too long."""

_LOOKS_IN_TIMEOUT = 4
_FROZEN_SECONDS = 1.0
_PATIENCE_WITH_THREAD = 1.0
_AT_ONCE = 0.3
"""Seconds in which SIGINT and SIGTERM are one request: somebody sends both, and they arrive in any order."""

_DONE, _ASKED = 0, 255
"""No signal has these numbers: the thread may go; a handler asks whether it has come so far."""


@dataclass
class Watchdog:
    """What the thread knows.

    first: called with the number of the first signal that does not end the process.
    stop_timeout: seconds from that one until the process must have ended; None: any time.
    step_timeout: seconds of a timed activity; None: any time.
    """

    standing: Standing
    first: Callable[[int], None]
    stop_timeout: float | None = None
    step_timeout: float | None = None
    received: int | None = None
    received_at: float = 0.0
    thawed_at: float = 0.0


@contextmanager
def hearing(watchdog: Watchdog) -> Iterator[Callable[[], None]]:
    """Let a thread hear and watch within this context. In the main thread only, as Python demands.

    It hears signals that have a handler of Python, in the order in which they came; on leaving, all that came
    before have been heard. A handler calls what this gives, to wait until its own signal has been heard.
    """
    reading, writing = os.pipe()
    answers, answering = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=_run, args=(watchdog, reading, answering), name="watchdog", daemon=True)
    thread.start()

    def catch_up() -> None:
        os.write(writing, bytes([_ASKED]))
        if select.select([answers], [], [], _PATIENCE_WITH_THREAD)[0]:
            os.read(answers, 1)

    try:
        yield catch_up
    finally:
        signal.set_wakeup_fd(before)
        os.write(writing, bytes([_DONE]))
        thread.join()
        for descriptor in (reading, writing, answers, answering):
            os.close(descriptor)


def _run(watchdog: Watchdog, reading: int, answering: int) -> None:
    while True:
        patience = _patience(watchdog, time.monotonic())
        asked_at = time.monotonic()
        is_heard, _, _ = select.select([reading], [], [], patience)
        now = time.monotonic()
        if patience is not None and now - asked_at > patience + _FROZEN_SECONDS:
            watchdog.thawed_at = now
        for number in os.read(reading, 512) if is_heard else b"":
            if number == _DONE:
                return
            if number == _ASKED:
                os.write(answering, b"!")
            if number in (signal.SIGINT, signal.SIGTERM):
                _hear(watchdog, number)
        _look(watchdog, time.monotonic())


def _patience(watchdog: Watchdog, now: float) -> float | None:
    """Seconds until the next look at the clock; None: only a signal matters."""
    waits = []
    if watchdog.step_timeout is not None:
        waits.append(watchdog.step_timeout / _LOOKS_IN_TIMEOUT)
        if watchdog.standing.activity.is_timed:
            waits.append(watchdog.step_timeout - _seconds(watchdog, watchdog.standing.activity, now))
    if watchdog.stop_timeout is not None and watchdog.received is not None:
        waits.append(watchdog.received_at + watchdog.stop_timeout - now)
    return max(min(waits), 0.01) if waits else None


def _seconds(watchdog: Watchdog, activity: Activity, now: float) -> float:
    """How long this activity takes already, without the time before the process went on again."""
    return now - max(activity.since, watchdog.thawed_at)


def _hear(watchdog: Watchdog, number: int) -> None:
    standing, name = watchdog.standing, signal.Signals(number).name
    if watchdog.received is not None:
        both_at_once = number != watchdog.received and time.monotonic() - watchdog.received_at < _AT_ONCE
        if both_at_once and number == signal.SIGTERM:  # as if it had come first: the code is its own
            watchdog.received = number
            watchdog.first(number)
        if number == signal.SIGINT and not both_at_once:
            standing.end("stopped at once; the last steps have no checkpoint", 128 + number)
    elif standing.activity.can_be_left:
        standing.end(f"{name} while {report(standing)}: no step was done, nothing is lost", 128 + number)
    else:
        watchdog.received, watchdog.received_at = number, time.monotonic()
        watchdog.first(number)


def _look(watchdog: Watchdog, now: float) -> None:
    _look_at_stop(watchdog, now)
    _look_at_step(watchdog, now)


def _look_at_stop(watchdog: Watchdog, now: float) -> None:
    number, limit, standing = watchdog.received, watchdog.stop_timeout, watchdog.standing
    if number is None or limit is None or now - watchdog.received_at < limit:
        return
    standing.end(
        f"{signal.Signals(number).name}: the run must end within run.stop_timeout={limit:g} seconds, but it "
        f"still is at {report(standing)}; that is given up, and {last_checkpoint(standing)}",
        128 + number,
    )


def _look_at_step(watchdog: Watchdog, now: float) -> None:
    limit, standing, activity = watchdog.step_timeout, watchdog.standing, watchdog.standing.activity
    if limit is None or not activity.is_timed or _seconds(watchdog, activity, now) < limit:
        return
    where, checkpoint = report(standing), last_checkpoint(standing)
    if standing.activity is activity:  # it may have ended just now
        standing.end(
            f"run.step_timeout={limit:g} seconds must be enough for a step or a batch of an evaluation, but "
            f"the run still is at {where}; {checkpoint}; resume, with a higher limit if it was only slow",
            TIMED_OUT,
        )
