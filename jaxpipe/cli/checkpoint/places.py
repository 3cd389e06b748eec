"""How a checkpoint is named on the command line: a run's directory, or the folder of one checkpoint.

runs/first                    the run: all of its checkpoints, or the newest complete one
runs/first/checkpoints        the same
runs/first/checkpoints/100    this one
"""

from pathlib import Path

from jaxpipe.checkpoint.manifest import FILE_NAME, Manifest, find_damage
from jaxpipe.checkpoint.step_folders import complete_steps, numbered_steps, read_complete, step_folder
from jaxpipe.cli.faults import RefusedError
from jaxpipe.errors import DamagedError, InputError

HELP = "a run's directory, or the folder of one checkpoint, such as runs/first/checkpoints/100"

_CHECKPOINTS = "checkpoints"


def find_steps(text: str) -> tuple[Path, tuple[int, ...]]:
    """The directory of the checkpoints, and the steps in it that are meant, whole or not.

    ``RefusedError`` if there is nothing of that name, or no checkpoints.
    """
    path = Path(text).resolve() if text and "\0" not in text else None
    try:
        is_there = path is not None and path.exists()
    except OSError:  # a name that is too long
        is_there = False
    if path is None or not is_there:
        raise RefusedError([f"there is no {text[:200]!r}; name a run's directory"])
    if (path / _CHECKPOINTS).is_dir():
        path = path / _CHECKPOINTS
    if _is_one(path):
        return path.parent, (int(path.name),)
    if path.is_dir() and (path.name == _CHECKPOINTS or any(path.glob(f"*/{FILE_NAME}"))):
        return path, numbered_steps(path)
    raise RefusedError([f"{text!r} holds no checkpoints; name a run's directory, such as runs/first"])


def find_whole(text: str) -> tuple[Path, Manifest]:
    """The folder of one checkpoint whose files are what was written; of a run, of its newest complete one.

    ``RefusedError`` if a run has none, ``InputError`` if it is not complete, or a file is not what it was.
    """
    directory, steps = find_steps(text)
    if Path(text).resolve().parent != directory:  # a run, and not one of its checkpoints
        steps = complete_steps(directory)
    if not steps:
        raise RefusedError([f"{text!r} has no complete checkpoint; see jaxpipe checkpoint ls"])
    folder = step_folder(directory, steps[-1])
    try:
        manifest = read_complete(directory, steps[-1])
    except DamagedError as error:
        raise InputError(f"checkpoint {folder} must be complete, but {error}") from error
    if damage := find_damage(folder, manifest.files):
        raise InputError(f"checkpoint {folder} must be whole, but {damage}; name another one")
    return folder, manifest


def _is_one(path: Path) -> bool:
    """Whether this is the folder of one checkpoint: by its name and where it lies, or by its manifest."""
    lies_there = path.parent.name == _CHECKPOINTS or (path / FILE_NAME).exists()
    return lies_there and path.name in map(str, numbered_steps(path.parent))
