"""SIGINT and SIGTERM end a run after the step in progress, with a checkpoint.

The first signal only sets what the loop reads after each step. Python runs handlers between bytecodes, never
inside XLA, so a thread hears the signals (watchdog.py): it answers at once, whatever the main thread does.

    when                      SIGINT (Ctrl-C)                      SIGTERM
    before the first step     exit 130, at once: nothing is lost   exit 143, at once
    from then on, the first   stop after this step, exit 0         stop after this step, exit 143
    a later one               exit 130, at once, no checkpoint     nothing, for it is already stopping
    not stopped in time       exit 130                             exit 143

A run that stopped in good order ends with 0 after SIGINT, for the user asked and was served, and with 143
after SIGTERM (128 + 15, as shells and schedulers know it), so that a scheduler sees that it is not finished.
"In time" is ``run.stop_timeout``: a step, an evaluation or a save that lasts longer is given up. Whenever the
process ends, the checkpoints that were complete are as they were.

A signal to one of several processes ends all of them: shared_stop.py.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from jaxpipe.training.stopping.leaving import say
from jaxpipe.training.stopping.standing import Standing
from jaxpipe.training.stopping.watchdog import Watchdog, hearing


class Stop(Protocol):
    """What the loop asks after each step, and then looks at."""

    def ask(self) -> None:
        """Find out whether to stop."""

    def __bool__(self) -> bool: ...

    @property
    def exit_code(self) -> int:
        """That of a run which stopped because of this."""


@dataclass
class StopRequest:
    """The stop of one process: true once a signal came.

    received: the first signal.
    announces: whether that is told on stderr.
    """

    received: signal.Signals | None = None
    announces: bool = True

    def ask(self) -> None:
        """Nothing: the handler has set it."""

    def __bool__(self) -> bool:
        return self.received is not None

    @property
    def exit_code(self) -> int:
        """See ``exit_code``."""
        return exit_code(self.received or 0)


def exit_code(number: int) -> int:
    """Of a run that was stopped by the signal of this number: 0 after SIGINT or none, 143 after SIGTERM."""
    return 128 + signal.SIGTERM if number == signal.SIGTERM else 0


@contextmanager
def stop_on_signals(
    *,
    announces: bool = True,
    standing: Standing | None = None,
    stop_timeout: float | None = None,
    step_timeout: float | None = None,
) -> Iterator[StopRequest]:
    """Within this context, signals set the request it gives; afterwards the old handlers are back.

    In the main thread only, as Python demands.

    standing: what the main thread does, and how the process ends; without it, always something to be kept.
    stop_timeout, step_timeout: seconds, see watchdog.py.
    """
    request = StopRequest(announces=announces)

    def first(number: int) -> None:
        request.received = signal.Signals(number)
        if request.announces:
            announce(number)

    if standing is None:
        standing = Standing()
        standing.begin("the caller's work")
    watchdog = Watchdog(standing, first, stop_timeout=stop_timeout, step_timeout=step_timeout)
    with hearing(watchdog) as catch_up:

        def handle(number: int, frame: FrameType | None) -> None:
            catch_up()  # so that the main thread does not go on before the thread has decided

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield request
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def announce(number: int, whose: str = "") -> None:
    """Tell that a signal, perhaps that of another process, has been received."""
    name = " ".join(filter(None, (signal.Signals(number).name, whose)))
    again = "; press Ctrl-C again to stop at once without it" if number == signal.SIGINT and not whose else ""
    say(f"\n{name}: stopping after the current step with a checkpoint{again}")
