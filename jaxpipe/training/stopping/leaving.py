"""The last words of a process, past Python's buffers: for handlers, threads, and where the rest hangs."""

import io
import os
import select
import sys
from contextlib import suppress
from typing import NoReturn, TextIO

STDERR = 2

_PATIENCE_WITH_READER = 1.0
_ALWAYS_FITS = 4096
"""Bytes that a pipe takes at once if it takes any (PIPE_BUF on Linux)."""

_SHOW_CURSOR = b"\x1b[?25h"


def tell(sentence: str) -> None:
    """One sentence on Python's stderr, from where nothing hangs; if nobody can read it, so be it."""
    with suppress(OSError):
        if sys.stderr is not None and _takes_more(sys.stderr):
            print(f"train.py: {sentence}", file=sys.stderr, flush=True)


def say(line: str) -> None:
    """One line on stderr; a handler may interrupt a print, which is not reentrant."""
    if sys.stderr is None:  # closed from the start: its number may by now be that of another file
        return
    with suppress(OSError):  # nobody may be left to read it, and what comes after matters more
        if _takes_more(STDERR):
            os.write(STDERR, f"{line}\n".encode()[:_ALWAYS_FITS])


def _takes_more(stream: TextIO | int) -> bool:
    """Whether a write would not wait for ever: a pipe that nobody reads may be full."""
    try:
        return bool(select.select([], [stream], [], _PATIENCE_WITH_READER)[1])
    except io.UnsupportedOperation:  # no file of the system, but some object of Python's
        return True
    except ValueError:  # closed
        return False


def say_and_exit(sentence: str, code: int) -> NoReturn:
    """End this process from whatever thread; nothing is cleaned up but the terminal."""
    show_cursor()
    say(f"train.py: {sentence}")
    os._exit(code)


def show_cursor() -> None:
    """A progress bar hides the cursor of its terminal: show it again, where there is one."""
    with suppress(OSError):
        terminal = next((number for number in (1, STDERR) if os.isatty(number)), None)
        if terminal is not None:
            os.write(terminal, _SHOW_CURSOR)
