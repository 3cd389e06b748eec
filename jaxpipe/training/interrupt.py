"""SIGINT and SIGTERM end a run after the step in progress, with a checkpoint.

The first signal only sets what the loop reads after each step. One that comes while a step, a compilation or
a save is in progress is seen when that has ended: Python runs handlers between bytecodes, never inside XLA.

    SIGINT (Ctrl-C)   first: stop after this step; later: exit 130, at once, without a checkpoint
    SIGTERM           first: stop after this step; later: nothing, for it is already stopping

Exit codes of a run that stopped in good order: 0 after SIGINT, for the user asked and was served; 143 after
SIGTERM (128 + 15, as shells and schedulers know it), so that a scheduler sees that the run is not finished.

A signal to one of several processes ends all of them: shared_stop.py.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

STDERR = 2


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
    """The stop of one process: true once a signal came; ``received`` is the first one."""

    received: signal.Signals | None = None

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
def stop_on_signals(*, announces: bool = True) -> Iterator[StopRequest]:
    """Within this context, signals set the request it gives; afterwards the old handlers are back.

    In the main thread only, as Python demands. ``announces``: whether the first signal is told on stderr.
    """
    request = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        if request.received is None:
            request.received = signal.Signals(number)
            if announces:
                announce(number)
        elif number == signal.SIGINT:
            _say("stopped at once; the last steps have no checkpoint")
            os._exit(128 + signal.SIGINT)  # an exception could land in any callback, and be swallowed there

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
    _say(f"{name}: stopping after the current step with a checkpoint{again}")


def _say(line: str) -> None:
    """One line on stderr, past Python's buffers: a handler may interrupt a print, which is not reentrant."""
    with suppress(OSError):  # nobody may be left to read it, and the checkpoint matters more
        os.write(STDERR, f"\n{line}\n".encode())
