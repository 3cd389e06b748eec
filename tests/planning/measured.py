"""Costs measured on emulated devices of this machine, and steps to hold predictions against."""

import jax
from jax.sharding import AxisType, Mesh

from benchmarks.programs import CompiledStep, Task, pipelined_step, random_text
from jaxpipe.config import Config
from jaxpipe.planning.costs_file import MeasuredCosts
from jaxpipe.profiling.measure import measure
from jaxpipe.profiling.request import sizes_of
from jaxpipe.training.plan import make_plan, optimizer_of


def measure_costs(config: Config, *, num_devices: int, num_rounds: int) -> MeasuredCosts:
    """What ``jaxpipe profile`` measures of a layer, and of all layers."""
    profile = measure(
        sizes_of(config),
        jax.devices()[:num_devices],
        stage_layers=config.model.num_hidden_layers,
        vocabulary_shards=config.mesh.pp * config.mesh.tp,
        optimizer=optimizer_of(config),
        num_rounds=num_rounds,
        advance=lambda _: None,
    )
    return profile.costs


def step_of(config: Config) -> CompiledStep:
    """The training step of a configuration."""
    plan = make_plan(config, _mesh(config))
    m = config.pipeline.num_microbatches
    text = random_text(
        m,
        config.train.global_batch_size // m,
        sequence_length=config.data.sequence_length,
        vocab_size=config.model.vocab_size,
    )
    return pipelined_step(plan.program, Task(plan.init_params, plan.make_constants, plan.optimizer, text))


def _mesh(config: Config) -> Mesh:
    mesh = config.mesh
    devices = jax.devices()[: mesh.dp * mesh.pp * mesh.tp]
    return jax.make_mesh(
        (mesh.dp, mesh.pp, mesh.tp), ("dp", "pp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=devices
    )
