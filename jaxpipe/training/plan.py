"""From the configuration to plain values: what a run is made of, before anything is allocated."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jax.sharding import Mesh

from jaxpipe.config import Config
from jaxpipe.config.schedule_choice import choice_of, make_schedule
from jaxpipe.lowering import TickTable, lower
from jaxpipe.models.attention import Implementation, attention_for
from jaxpipe.models.flops import flops_per_token
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import Layout, Program, Settings, Sharding, Tree, balanced_layers
from jaxpipe.planning.hardware import peak_flops
from jaxpipe.schedules import Placement, Schedule, forward_only
from jaxpipe.training.optimizer import AdamW
from jaxpipe.training.utilization import Utilization


class Plan(NamedTuple):
    """Everything of a run that is settled by its configuration and its mesh.

    program: the training step's schedule, lowered; ``evaluation`` the forward-only one.
    init_params, make_constants: compute when called.
    """

    schedule: Schedule
    program: Program
    evaluation: Program
    optimizer: AdamW
    init_params: Callable[[], Tree]
    make_constants: Callable[[], Tree]


def make_plan(config: Config, mesh: Mesh, *, attention: Implementation | None = None) -> Plan:
    """The plan of a configuration without faults.

    attention: that of the mesh's devices, if left out; a mesh without devices must say.
    """
    model, pipeline = config.model, config.pipeline
    schedule = make_schedule(choice_of(config))
    placement = schedule.placement
    layers = pipeline.layers_per_stage or balanced_layers(model.num_hidden_layers, placement.num_stages)
    dtype = jnp.dtype(config.train.compute_dtype)
    if attention is None:
        attention = attention_for(mesh.devices.flat[0].platform, dtype)
    contract = llama_contract(model, attention)
    settings = Settings(remat=pipeline.remat, compute_dtype=dtype)
    sharding = Sharding(
        tp=config.mesh.tp,
        zero=config.mesh.zero,
        sequence=config.mesh.sequence_parallel,
        splits=contract.splits,
    )

    def program(table: TickTable, settings: Settings) -> Program:
        layout = Layout(table.placement, layers, model.vocab_size, sharding)
        return Program(contract, table, layout, mesh, settings)

    transfer_ticks = pipeline.transfer_ticks
    return Plan(
        schedule=schedule,
        program=program(
            lower(schedule, transfer_ticks=transfer_ticks, fuse_backward=pipeline.fuse_backward),
            settings._replace(specialised=pipeline.program == "segments"),
        ),
        evaluation=program(
            lower(forward_only(_pipe_0(placement), pipeline.num_microbatches), transfer_ticks=transfer_ticks),
            settings,
        ),
        optimizer=optimizer_of(config),
        init_params=lambda: init_llama(model, config.run.seed),
        make_constants=lambda: llama_constants(model, config.data.sequence_length),
    )


def utilization_of(config: Config, mesh: Mesh) -> Utilization:
    """What a step computes, and what the devices could."""
    sequence_length = config.data.sequence_length
    num_positions = config.train.global_batch_size * sequence_length
    peak = config.run.peak_flops or peak_flops(mesh.devices.flat[0].device_kind, config.train.compute_dtype)
    return Utilization(
        flops_per_step=num_positions * flops_per_token(config.model, sequence_length),
        peak=None if peak is None else mesh.size * peak,
    )


def optimizer_of(config: Config) -> AdamW:
    """The optimizer's settings."""
    optimizer = config.optimizer
    return AdamW(
        learning_rate=optimizer.learning_rate,
        min_ratio=optimizer.min_learning_rate_ratio,
        warmup_steps=optimizer.warmup_steps,
        decay_steps=config.train.num_steps if optimizer.decay_steps is None else optimizer.decay_steps,
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
    )


def _pipe_0(placement: Placement) -> Placement:
    """The same without a second pipe: parameters lie as they did, and an evaluation needs no copy of them."""
    return replace(placement, stage_ranks=placement.stage_ranks[:1], stage_chunks=placement.stage_chunks[:1])
