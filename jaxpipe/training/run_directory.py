"""The directory of a run: where its files lie, and that it belongs to one run and one process.

::

    runs/x/
      config.yaml       the resolved config
      schedule.csv      the schedule, if it comes from a file
      metrics.jsonl     see metrics.py
      imported.txt      whence the weights are, if the run did not begin with random ones; without a
                        config.yaml, what an import has left that was broken off
      samples.jsonl     a continuation of train.sample_prompt after each evaluation
      tokenizer/        the files of the tokenizer, if tokens are not bytes
      ticks-<step>.json the ticks of run.trace_step: planning/tick_file.py
      checkpoints/      see checkpoint/
      .lock             locked while a process works here

The lock is ``flock``'s: the kernel holds it for the living process and drops it when that ends, however it
ends. So two runs started at once cannot share a directory, a run that is still going cannot be resumed, and a
killed one leaves nothing to clean up. The file stays; only its lock counts.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from jaxpipe.config.run_directory_rule import IMPORTED, is_broken_off_import
from jaxpipe.errors import InputError
from jaxpipe.training.atomic_write import write_text_atomically


@dataclass(frozen=True)
class RunDirectory:
    """The paths of a run's files; ``claim_run_directory`` makes it."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def schedule(self) -> Path:
        return self.path / "schedule.csv"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def imported(self) -> Path:
        return self.path / IMPORTED

    @property
    def samples(self) -> Path:
        return self.path / "samples.jsonl"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    def ticks(self, step: int) -> Path:
        return self.path / f"ticks-{step}.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"


def run_directory(directory: Path | str) -> RunDirectory:
    """The paths alone, for those who do not write."""
    return RunDirectory(Path(directory).resolve())


@contextmanager
def claim_run_directory(directory: Path | str, *, resume: bool) -> Iterator[RunDirectory]:
    """Hold ``directory`` for this process, for a new run or to resume the one it holds.

    Nothing is written but the directory and its lock: a run begins with ``write_config``. What an import
    has left that was broken off is removed.

    Raises:
        InputError: another process works there; a new run would overwrite one; there is none to resume.
    """
    run = run_directory(directory)
    _check(run, resume=resume)
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        file = (run.path / ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise InputError(f"run.dir={run.path} cannot be written: {error.strerror}; choose another") from error
    with file as lock:
        _lock(lock, run.path)
        _check(run, resume=resume)
        if is_broken_off_import(run.path):
            remove_import(run)
        yield run


def write_config(run: RunDirectory, text: str) -> None:
    """Write ``config.yaml`` whole or not at all; from then on the directory holds a run."""
    write_text_atomically(run.config, text)


def remove_import(run: RunDirectory) -> None:
    """Remove what an import writes; ``imported.txt``, first written, goes last.

    So as long as anything is there, it is known for what it is.
    """
    run.config.unlink(missing_ok=True)
    run.schedule.unlink(missing_ok=True)
    for folder in (run.checkpoints, run.tokenizer):
        shutil.rmtree(folder, ignore_errors=True)
    if not (run.checkpoints.exists() or run.tokenizer.exists()):
        run.imported.unlink(missing_ok=True)


def _check(run: RunDirectory, *, resume: bool) -> None:
    """Before the lock, so that a refusal leaves no trace; and again under it, when nobody else can write."""
    if run.path.exists() and not run.path.is_dir():
        raise InputError(f"run.dir={run.path} must be a directory, but it is a file; choose another")
    held = [path.name for path in (run.config, run.metrics, run.samples, run.checkpoints) if path.exists()]
    if resume and not run.config.exists():
        raise InputError(
            f"run.dir={run.path} must hold the run to resume, but it has no config.yaml; "
            "start it without checkpoint.resume, or name the directory of the run"
        )
    if held and not resume and not is_broken_off_import(run.path):
        raise InputError(
            f"run.dir={run.path} must hold no other run, but it has {', '.join(held)}; "
            "choose another directory, or continue that run with --checkpoint.resume"
        )


def _lock(lock: TextIO, path: Path) -> None:
    """Take the lock, or say who has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        raise InputError(
            f"run.dir={path} must belong to one process, but process {lock.read() or '?'} works there; "
            "wait until it has ended, or choose another directory"
        ) from error
    except OSError as error:
        raise InputError(
            f"run.dir={path} must lie where files can be locked, but: {error.strerror or error}; choose "
            "another file system, or mount this one with locks (Lustre: -o flock)"
        ) from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
