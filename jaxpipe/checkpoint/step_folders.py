"""Which checkpoints a directory holds, read from the disk every time.

::

    checkpoints/
      100/                          complete: it has Orbax's metadata with the time of its commit
      200/                          empty or without that time: not a checkpoint, ignored
      300.orbax-checkpoint-tmp/     being written, or left by a run that was killed

A checkpoint appears by one rename, after all of its files, and disappears by one rename, before any of its
files is deleted. So whenever the process ends, what counts as a checkpoint is whole. Steps are ordered as
numbers. Only one process writes to a directory (see training/run_directory.py, which locks it).
"""

import json
import re
import shutil
from pathlib import Path

TEMPORARY = ".orbax-checkpoint-tmp"
COMMIT_METADATA = "_CHECKPOINT_METADATA"
NUMBERED = re.compile("0|[1-9][0-9]*")


def step_folder(directory: Path, step: int) -> Path:
    """Where the checkpoint of ``step`` lies, or would lie."""
    return directory / str(step)


def complete_steps(directory: Path) -> tuple[int, ...]:
    """The steps of all complete checkpoints, ascending."""
    numbered = (path for path in directory.iterdir() if NUMBERED.fullmatch(path.name))
    return tuple(sorted(int(path.name) for path in numbered if _is_complete(path)))


def remove_old(directory: Path, *, keep: int) -> None:
    """Delete all complete checkpoints but the newest ``keep``."""
    for step in complete_steps(directory)[:-keep]:
        doomed = step_folder(directory, step).rename(directory / f"{step}{TEMPORARY}-old")
        shutil.rmtree(doomed)


def remove_leftovers(directory: Path) -> None:
    """Delete what a killed or failed save, or a killed deletion, has left. Nothing may be in progress."""
    for path in directory.glob(f"*{TEMPORARY}*"):
        shutil.rmtree(path)


def _is_complete(folder: Path) -> bool:
    """Whether Orbax has committed ``folder``."""
    try:
        metadata = json.loads((folder / COMMIT_METADATA).read_bytes())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return False
    return metadata.get("commit_timestamp_nsecs") is not None
