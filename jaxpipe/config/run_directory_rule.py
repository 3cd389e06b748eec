"""The rule of the run's directory: a new run wants one without a run, one that resumes wants its own."""

import os
import stat
import tempfile
from pathlib import Path

_CHECKPOINTS = "checkpoints"
RUN_FILES = ("config.yaml", "metrics.jsonl", "samples.jsonl", _CHECKPOINTS)
"""What a run writes, the first of them first; any one shows that a directory is taken."""

IMPORTED = "imported.txt"
"""What an import of weights writes first, and keeps."""


def is_broken_off_import(path: Path) -> bool:
    """Whether an import began here, and there is no run: it writes the configuration last.

    What it left is nobody's, and a new run may take its place.
    """
    of_a_run = [name for name in RUN_FILES if name != _CHECKPOINTS]
    return (path / IMPORTED).exists() and not any((path / name).exists() for name in of_a_run)


def run_directory_fault(directory: str, *, resume: bool, may_resume: bool = True) -> str | None:
    """A new run wants a directory without a run; one that resumes wants a run there.

    Args:
        may_resume: whether whoever asked for a new run could go on with the old one instead.
    """
    path = Path(directory)
    if obstacle := _obstacle(path):
        return f"run.dir={directory!r} cannot be used: {obstacle}; name a directory that can be written"
    taken = next((name for name in RUN_FILES if (path / name).exists()), None)
    if taken and not resume and not is_broken_off_import(path):
        other = ", or give --checkpoint.resume to continue that run" if may_resume else ""
        return f"run.dir={directory} already holds a run (it has {taken}); name another directory{other}"
    if resume and not (path / RUN_FILES[0]).exists():
        return (
            f"run.dir={directory} holds no run to resume (it has no {RUN_FILES[0]}); "
            "correct run.dir, or leave --checkpoint.resume out"
        )
    return None


def _obstacle(path: Path) -> str:
    """Why the directory cannot be made and written, or nothing; asks the nearest place that exists.

    Only an attempt shows that: permissions say nothing of a read-only disk or of /proc. It leaves no trace.
    """
    for place in (path, *path.parents):
        try:
            is_directory = stat.S_ISDIR(os.stat(place).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return _reason(error)
        except ValueError:
            return "a path holds no null character"
        if not is_directory:
            return f"{place} is a file"
        try:
            tempfile.TemporaryFile(dir=place).close()
        except OSError as error:
            return f"nothing can be written to {place.absolute()} ({_reason(error)})"
        return ""
    return "there is no such place"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
