"""The rules of where curves go besides ``metrics.jsonl``: what is asked for must be installed."""

from collections.abc import Iterator
from importlib.util import find_spec

_NOT_IN_PROJECT = '/\\#?%:"'
_LONGEST_PROJECT = 128


def check_tensorboard(tensorboard: bool) -> Iterator[str]:
    """What writes its files is there."""
    if tensorboard and not _is_installed("tensorboardX"):
        yield (
            "run.tensorboard=true needs tensorboardX, which is not installed; "
            "pip install tensorboardX (the extra tensorboard), or leave it out"
        )


def check_wandb(project: str | None) -> Iterator[str]:
    """What talks to it is there, and it takes the name of the project."""
    if project is None:
        return
    if not _is_installed("wandb"):
        yield (
            f"run.wandb={project} needs wandb, which is not installed; "
            "pip install wandb (the extra of that name), or leave it out"
        )
    if len(project) > _LONGEST_PROJECT or set(project) & set(_NOT_IN_PROJECT):
        yield (
            f"run.wandb={project} must be a project's name: at most {_LONGEST_PROJECT} characters, "
            f"none of {' '.join(_NOT_IN_PROJECT)}; choose another"
        )


def _is_installed(package: str) -> bool:
    """Whether there is such a package; a folder of that name, as W&B leaves them, is none."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None
