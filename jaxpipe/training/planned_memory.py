"""The exact bytes of layouts that are only thought of: by shapes, on a mesh without devices."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

from jaxpipe.config import Config
from jaxpipe.models.attention import Implementation, attention_for
from jaxpipe.pipeline import Batch, to_stage_layout
from jaxpipe.training.memory import StepMemory, step_memory
from jaxpipe.training.plan import make_plan


def planned_memory(config: Config, platform: str) -> StepMemory:
    """Of a step of this configuration on devices of that platform, whatever this machine has."""
    mesh: Any = AbstractMesh(  # which does for a mesh where nothing runs
        (config.mesh.dp, config.mesh.pp, config.mesh.tp),
        ("dp", "pp", "tp"),
        axis_types=(AxisType.Auto,) * 3,
    )
    plan = make_plan(config, mesh, attention=_traceable(platform, config))
    params = jax.eval_shape(lambda: to_stage_layout(plan.init_params(), plan.program.layout))
    constants = jax.eval_shape(plan.make_constants)
    m = config.pipeline.num_microbatches
    tokens = jax.ShapeDtypeStruct(
        (m, config.train.global_batch_size // m, config.data.sequence_length), jnp.int32
    )
    extras = dict.fromkeys(("segments", "positions"), tokens) if config.data.isolate_documents else {}
    batch = Batch._make((tokens, tokens, extras))
    return step_memory(plan.program, params, batch, constants, widens=platform == "cpu")


def _traceable(platform: str, config: Config) -> Implementation:
    """cuDNN's is only traced where it is; with isolated documents it reads a mask, and xla's holds one."""
    attention = attention_for(platform, jnp.dtype(config.train.compute_dtype))
    if attention != "cudnn":
        return attention
    return "xla" if config.data.isolate_documents else "shapes"
