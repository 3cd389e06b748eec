"""Ctrl-C in a command that has nothing to tidy up, while XLA is at work: the process ends where it is.

An exception would reach the main thread in some callback of XLA's, which swallows it, or end the interpreter
under threads that still compute.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def leaving_at_once(name: str) -> Iterator[None]:
    """While this lasts SIGINT and SIGTERM end the process, with a line that begins with ``name``."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        shown_cursor = "\x1b[?25h" if os.isatty(2) else ""  # a status line hides it
        said = "interrupted" if number == signal.SIGINT else "terminated"
        os.write(2, f"{shown_cursor}\n{name}: {said}\n".encode())
        os._exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
