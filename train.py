"""Pre-train a Llama model: ``python train.py configs/tiny.yaml --pipeline.schedule zb_h1``."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Check the configuration, then load JAX and train; the exit code."""
    from jaxpipe.config import parse
    from jaxpipe.errors import InputError
    from jaxpipe.training.stopping.endings import ending_of
    from jaxpipe.training.stopping.leaving import tell
    from jaxpipe.training.storage import flushed

    try:
        command = parse(sys.argv[1:])
        # loads JAX: nothing is wrong with the configuration by now
        from jaxpipe.training.trainer import train

        code = train(command.config, dry_run=command.dry_run)
    except (InputError, OSError) as error:
        if (ending := ending_of(error)) is None:
            raise
        tell(ending.sentence)
        code = ending.code
    except SystemExit as error:  # the parser has told what is wrong, or has helped
        code = int(error.code or 0)
    return flushed(code)


def _leave(number: int, frame: FrameType | None) -> None:
    """Before the run begins there is nothing to keep, and no import is worth a traceback."""
    os._exit(128 + number)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    code = main()
    if code == 1:  # of a save that failed threads may still be at work, and stumble while Python ends
        os._exit(code)
    sys.exit(code)
