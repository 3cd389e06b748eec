"""Which checkpoints a directory holds, read from the disk every time.

::

    checkpoints/
      100/                complete: its manifest is there, agrees with itself, and is of step 100
      200/                empty, or with a manifest that is missing or was changed: damaged, never written so
      200.damaged/        the same, after a resumed run has set it aside; nothing of ours reads or deletes it
      300.unfinished/     being written, or left by a run that was killed
      50.deleting/        being deleted, or left by a run that was killed

A checkpoint appears by one rename, after all of its files and its manifest, and disappears by one rename,
before any of its files is deleted. So whenever the process ends, what counts as a checkpoint is whole. Steps
are ordered as numbers. Only one process writes to a directory: training/run_directory.py locks it.
"""

import re
import shutil
import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from jaxpipe.checkpoint.manifest import Manifest, read_manifest, sync_folder
from jaxpipe.errors import CheckpointError, DamagedError, InputError

UNFINISHED = ".unfinished"
DELETING = ".deleting"
DAMAGED = ".damaged"

_PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
_TIMES_ABSENT = 3
_NUMBER = re.compile("0|[1-9][0-9]*")
_ASIDE = re.compile(rf"({_NUMBER.pattern}){re.escape(DAMAGED)}(-\d+)?")
_LEFTOVER = re.compile(f"({_NUMBER.pattern})({re.escape(UNFINISHED)}|{re.escape(DELETING)})")


class Entry(NamedTuple):
    """What has a step's number for a name; ``manifest`` is None where ``fault`` says what is wrong."""

    step: int
    manifest: Manifest | None
    fault: str = ""


def step_folder(directory: Path, step: int) -> Path:
    """Where the checkpoint of ``step`` lies, or would lie."""
    return directory / str(step)


def unfinished_folder(directory: Path, step: int) -> Path:
    """Where it lies while it is being written."""
    return directory / f"{step}{UNFINISHED}"


def entries(directory: Path) -> tuple[Entry, ...]:
    """All that looks like a checkpoint by its name, in the order of steps. Hashes no file."""
    return tuple(_entry(directory, step) for step in numbered_steps(directory))


def numbered_steps(directory: Path) -> tuple[int, ...]:
    """The steps of ``entries``, ascending; CheckpointError if the directory cannot be read."""
    return tuple(sorted(int(name) for name in _names(directory) if _NUMBER.fullmatch(name)))


def complete_steps(directory: Path) -> tuple[int, ...]:
    """The steps of all complete checkpoints, ascending."""
    return tuple(entry.step for entry in entries(directory) if entry.manifest is not None)


def read_complete(directory: Path, step: int) -> Manifest:
    """The manifest of the checkpoint of ``step``; DamagedError if that is not complete."""
    manifest = read_manifest(step_folder(directory, step))
    if manifest.step != step:
        raise DamagedError(f"its manifest says that it is of step {manifest.step}")
    return manifest


def publish(directory: Path, step: int) -> Path | None:
    """What was written to the unfinished folder becomes the checkpoint of ``step``.

    What has its name and is no checkpoint is set aside: its new path, or None.
    """
    final = step_folder(directory, step)
    in_the_way = set_aside(directory, step) if final.exists() else None
    unfinished_folder(directory, step).rename(final)
    sync_folder(directory)
    return in_the_way


def set_aside(directory: Path, step: int) -> Path:
    """Give what is damaged another name, so that its step is free; the new path."""
    names = (f"{step}{DAMAGED}{'' if number == 1 else f'-{number}'}" for number in count(1))
    target = next(path for path in (directory / name for name in names) if not path.exists())
    return step_folder(directory, step).rename(target)


def best_step(found: Iterable[Entry]) -> int | None:
    """The complete one with the lowest validation loss, the first of several; None without any."""
    losses = [
        (entry.manifest.validation_loss, entry.step)
        for entry in found
        if entry.manifest is not None and entry.manifest.validation_loss is not None
    ]
    return min(losses)[1] if losses else None


def remove_old(directory: Path, *, keep: int, keeps_best: bool) -> None:
    """Delete all complete checkpoints but the newest ``keep``, and the best one if that ``keeps_best``."""
    complete = [entry for entry in entries(directory) if entry.manifest is not None]
    best = best_step(complete) if keeps_best else None
    for step, *_ in complete[:-keep]:
        if step != best:
            _delete(step_folder(directory, step).rename(directory / f"{step}{DELETING}"))


def remove_leftovers(directory: Path) -> None:
    """Delete what a killed or failed save, or a killed deletion, has left. Nothing may be in progress."""
    for path in leftovers(directory):
        _delete(path)


def remove_unfinished(directory: Path, step: int) -> None:
    """Delete what a failed save has left, though threads of it may still be writing there.

    Until it stays away, but for some seconds at most: the next save deletes it anyway.
    """
    folder = unfinished_folder(directory, step)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    num_absent = 0
    while num_absent < _TIMES_ABSENT and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_PAUSE_SECONDS)
        num_absent = 0 if folder.exists() else num_absent + 1


def leftovers(directory: Path) -> Iterator[Path]:
    """The folders that ``remove_leftovers`` would delete."""
    yield from sorted(directory / name for name in _names(directory) if _LEFTOVER.fullmatch(name))


def damaged_folders(directory: Path) -> list[str]:
    """The names of what was set aside."""
    return sorted(name for name in _names(directory) if _ASIDE.fullmatch(name))


def _names(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be read: {error.strerror or error}; mend that") from error


def _delete(path: Path) -> None:
    """A folder with all that is in it; of a link, the link alone."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


def _entry(directory: Path, step: int) -> Entry:
    """Of what cannot be read, or is of another format, this is all that is known: nobody may build on it."""
    try:
        return Entry(step, read_complete(directory, step))
    except (DamagedError, CheckpointError, InputError) as error:
        return Entry(step, None, str(error))
