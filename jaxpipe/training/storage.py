"""What a run writes besides checkpoints may fail, too: a full disk, a limit, a pipe that nobody reads."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from jaxpipe.errors import StorageError

REMEDY = "make room there, then go on with --checkpoint.resume"

_NO_FAULT_OF_OURS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    errno.EPIPE,
    errno.ESTALE,
}
"""Errors of a disk or a pipe; any other one from an unexpected place keeps its traceback."""


@contextmanager
def storing(path: Path | str) -> Iterator[None]:
    """Turn an error of writing ``path`` into a sentence.

    Raises:
        StorageError: ``path`` could not be written.
    """
    try:
        yield
    except (FileExistsError, StorageError):  # no fault of the disk, or told already
        raise
    except BrokenPipeError as error:
        raise StorageError(
            f"{path} must be written, but nobody reads it any more; go on with --checkpoint.resume"
        ) from error
    except OSError as error:
        raise StorageError(f"{path} must be written, but: {_cause(error)}; {REMEDY}") from error


def storage_sentence(error: OSError) -> str | None:
    """What to tell of an error that no ``storing`` has seen; None if it is not one of a disk or a pipe."""
    if isinstance(error, StorageError):
        return str(error)
    if error.errno not in _NO_FAULT_OF_OURS:
        return None
    if isinstance(error, BrokenPipeError):
        return "the standard output or a pipe must be written, but nobody reads it any more"
    return f"{error.filename or 'a file'} could not be read or written: {_cause(error)}; {REMEDY}"


def flushed(code: int) -> int:
    """Flush stdout and stderr at the end of a process; its exit code, 1 if that is impossible.

    Otherwise Python would try that later, print a warning, and exit with 120.
    """
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        if not _flush(stream, number):
            code = code or 1
    return code


def _flush(stream: TextIO | None, number: int) -> bool:
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
        return False
    return True


def _cause(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
