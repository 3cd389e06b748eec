"""Errors that end a run with a sentence instead of a traceback: what they say is the user's to mend."""

import os
import re

_LONGEST = 200


class InputError(ValueError):
    """What was asked for cannot be done: the message holds the rule, the values found and the remedy.

    The command prints the message and exits with 2; every other exception keeps its traceback.
    """


class StorageError(OSError):
    """Something could not be written; the checkpoints are as they were. The command exits with 1."""


class CheckpointError(StorageError):
    """A checkpoint could not be written or read; all that were complete are as they were."""


class DamagedError(InputError):
    """A checkpoint is not what was written: the message is what is wrong with it."""


class NotFiniteError(ArithmeticError):
    """Values are not finite: what they are part of must not be saved."""


def first_line(error: BaseException) -> str:
    """What an error of somebody else's says, in short: the system's words where it passes on its number."""
    number = re.search(r"os_error_code='(\d+)'", str(error))
    if number is not None:
        return os.strerror(int(number[1]))
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
