"""Costs measured on emulated devices of this machine, and steps to hold predictions against."""

from collections.abc import Callable

import jax
from jax.sharding import AxisType, Mesh

from benchmarks.programs import ReadyStep, pipelined_step, task_of
from jaxpipe.config import Config
from jaxpipe.planning.costs_file import MeasuredCosts
from jaxpipe.profiling.measure import measure
from jaxpipe.profiling.request import sizes_of
from jaxpipe.training.plan import make_plan, optimizer_of


def measure_costs(
    config: Config, *, num_devices: int, num_rounds: int, between: Callable[[], object] = lambda: None
) -> MeasuredCosts:
    """What ``jaxpipe profile`` measures of a layer, and of all; ``between`` goes between its parts."""
    profile = measure(
        sizes_of(config),
        jax.devices()[:num_devices],
        stage_layers=config.model.num_hidden_layers,
        vocabulary_shards=config.mesh.pp * config.mesh.tp,
        optimizer=optimizer_of(config),
        num_rounds=num_rounds,
        advance=lambda _: between(),
    )
    return profile.costs


def step_of(config: Config) -> ReadyStep:
    """The training step of a configuration."""
    plan = make_plan(config, _mesh(config))
    return pipelined_step(plan.program, task_of(plan, config))


def _mesh(config: Config) -> Mesh:
    mesh = config.mesh
    devices = jax.devices()[: mesh.dp * mesh.pp * mesh.tp]
    return jax.make_mesh(
        (mesh.dp, mesh.pp, mesh.tp), ("dp", "pp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=devices
    )
