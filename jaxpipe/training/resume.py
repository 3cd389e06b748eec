"""Where a run starts: anew, or after its newest checkpoint."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml
from jax.sharding import Mesh

from jaxpipe.checkpoint.checkpoints import Checkpoints
from jaxpipe.config import Config, to_yaml
from jaxpipe.data import Batches
from jaxpipe.errors import InputError
from jaxpipe.pipeline import Tree
from jaxpipe.training.plan import Plan
from jaxpipe.training.processes import from_first, is_first
from jaxpipe.training.state import canonical_template

NO_STEP = -1


class Found(NamedTuple):
    """The newest checkpoint: its step, its canonical state, and in words what the configuration changes."""

    step: int
    canonical: Tree
    changes: str


def checkpoint_info(config: Config, batches: Batches) -> dict[str, Any]:
    """What a checkpoint holds besides the arrays: position in the data, and the configuration."""
    return {"data": batches.get_state(), "config": to_yaml(config)}


def read_checkpoint(
    config: Config, plan: Plan, mesh: Mesh, *, checkpoints: Checkpoints, batches: Batches
) -> Found | None:
    """The newest checkpoint, with ``batches`` set to go on after it; None if there is no complete one.

    Of several processes the first one looks, and all read what it found.

    Raises:
        InputError: it is of another model, its position is one in other data, or it has more steps than
            the run is to have.
    """
    latest = checkpoints.latest() if is_first() else None
    step = from_first(NO_STEP if latest is None else latest)
    if step == NO_STEP:
        return None
    info = checkpoints.read_info(step)
    changed = _changed(yaml.safe_load(info["config"]), yaml.safe_load(to_yaml(config)))
    _check(step, changed, config)
    batches.set_state(info["data"])
    words = ", ".join(f"{key} {before} -> {now}" for key, (before, now) in changed.items())
    template = canonical_template(plan.init_params, plan.optimizer, layout=plan.program.layout, mesh=mesh)
    return Found(step, checkpoints.restore(step, template), words or "nothing changed")


def _check(step: int, changed: Mapping[str, tuple[Any, Any]], config: Config) -> None:
    """The model must be the same, also in what no array's shape shows: epsilon, theta, RoPE scaling."""
    model = {key: values for key, values in changed.items() if key.startswith("model.")}
    if model:
        values = ", ".join(f"{key}={now} (saved: {before})" for key, (before, now) in model.items())
        raise InputError(
            f"a run resumes with the model of its checkpoint, but {values}; use what was saved, or start anew"
        )
    if step > config.train.num_steps:
        raise InputError(
            f"train.num_steps={config.train.num_steps} must be at least {step}, which the run has done; "
            "raise it, or start anew"
        )


def _changed(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """``{key: (saved, wanted)}`` of the keys that differ, without those that say how a run is started."""
    before, now = dict(_flat(saved)), dict(_flat(wanted))
    keys = sorted(before.keys() | now.keys())
    differing = {key: (before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)}
    return {key: values for key, values in differing.items() if not _is_how_it_is_started(key)}


def _is_how_it_is_started(key: str) -> bool:
    return key in ("checkpoint.resume", "run.dir") or key.startswith("distributed.")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
