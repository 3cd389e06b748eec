"""``python -m jaxpipe`` is the command ``jaxpipe``: what surrounds it in a process of its own.

Ctrl-C while modules are loaded ends at once, and where JAX was loaded Python does not take itself apart at
the end, under XLA's threads. What the terminal cannot show is escaped.
"""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType


def entry() -> None:
    """Run the command, and leave."""
    signal.signal(signal.SIGINT, _leave)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    from jaxpipe.cli import main

    code = main()
    if "jax" not in sys.modules:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):  # nobody reads any more, or there is none
            stream.flush()
    os._exit(code)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    entry()
