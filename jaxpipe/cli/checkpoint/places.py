"""How a checkpoint is named on the command line: a run's directory, or the folder of one checkpoint.

runs/first                    the run: all of its checkpoints, or the newest whole one
runs/first/checkpoints        the same
runs/first/checkpoints/100    this one
"""

from pathlib import Path

from jaxpipe.checkpoint.step_folders import complete_steps, numbered_steps
from jaxpipe.cli.faults import RefusedError

HELP = "a run's directory, or the folder of one checkpoint, such as runs/first/checkpoints/100"


def find_directory(text: str) -> Path:
    """The directory with the checkpoints of a run; ``RefusedError`` if there is none."""
    path = Path(text)
    if not text or "\0" in text or not path.exists():
        raise RefusedError([f"there is no {text!r}; name a run's directory"])
    for directory in (path / "checkpoints", path):
        if directory.is_dir() and (directory.name == "checkpoints" or numbered_steps(directory)):
            return directory
    raise RefusedError([f"{text!r} holds no checkpoints; name a run's directory, such as runs/first"])


def find_steps(text: str) -> tuple[Path, tuple[int, ...]]:
    """The directory, and the steps in it that are meant, whole or not."""
    path = Path(text)
    if path.exists() and path.parent.is_dir() and path.name.isdigit():
        step = int(path.name)
        if step in numbered_steps(path.parent):
            return path.parent, (step,)
    directory = find_directory(text)
    return directory, numbered_steps(directory)


def find_one(text: str) -> tuple[Path, int]:
    """The directory, and the step: of a run, its newest complete checkpoint."""
    directory, steps = find_steps(text)
    if len(steps) == 1 and Path(text).name == str(steps[0]):
        return directory, steps[0]
    complete = complete_steps(directory)
    if not complete:
        raise RefusedError([f"{text!r} has no complete checkpoint; see jaxpipe checkpoint ls"])
    return directory, complete[-1]
