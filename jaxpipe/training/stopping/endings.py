"""Errors that end a run with one sentence and a code; all others keep their traceback."""

from typing import NamedTuple

from jaxpipe.errors import InputError, NotFiniteError
from jaxpipe.training.storage import storage_sentence


class Ending(NamedTuple):
    """The exit code, and the sentence; an empty one is not told."""

    code: int
    sentence: str


def ending_of(error: BaseException) -> Ending | None:
    """How a run ends that met this error; None if it is a fault of ours, which wants its traceback."""
    match error:
        case InputError():
            return Ending(2, str(error))
        case NotFiniteError():
            return Ending(1, str(error))
        case KeyboardInterrupt():
            return Ending(130, "")
        case SystemExit(code=int(code)) if code > 128:  # a signal, which the command has told
            return Ending(code, "")
        case OSError():
            sentence = storage_sentence(error)
            return None if sentence is None else Ending(1, sentence)
    return None
