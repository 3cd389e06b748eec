"""Where a run starts: anew, or after its newest checkpoint."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from jax.sharding import Mesh

from jaxpipe.checkpoint import Checkpoints
from jaxpipe.config import Config, to_yaml
from jaxpipe.data import Batches
from jaxpipe.errors import InputError
from jaxpipe.pipeline import Tree
from jaxpipe.training.plan import Plan
from jaxpipe.training.state import canonical_template


def checkpoint_info(config: Config, batches: Batches) -> dict[str, Any]:
    """What a checkpoint holds besides the arrays: position in the data, the model, the configuration."""
    return {"data": batches.get_state(), "model": asdict(config.model), "config": to_yaml(config)}


def read_checkpoint(
    config: Config, plan: Plan, mesh: Mesh, *, checkpoints: Checkpoints, batches: Batches
) -> tuple[int, Tree] | None:
    """``(step, canonical state)`` of the newest checkpoint, with ``batches`` set to go on after it.

    None if there is no complete checkpoint.

    Raises:
        InputError: the checkpoint is of another model, or its position is one in other data.
    """
    step = checkpoints.latest()
    if step is None:
        return None
    info = checkpoints.read_info(step)
    _check_same_model(info["model"], asdict(config.model))
    batches.set_state(info["data"])
    return step, checkpoints.restore(step, canonical_template(plan.init_params, plan.optimizer, mesh))


def _check_same_model(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Also what no array's shape shows: epsilon, theta, RoPE scaling."""
    differing = [name for name in wanted if saved.get(name) != wanted[name]]
    if differing:
        values = ", ".join(f"model.{name}={wanted[name]} (saved: {saved.get(name)})" for name in differing)
        raise InputError(
            f"a run resumes with the model of its checkpoint, but {values}; use the saved values"
        )
