"""Trained parameters are equal to the bit, whatever the order of the schedule and the place of the layers.

The whole step as a run compiles it, optimizer and active clipping included; two-pipe schedules among
themselves. Slow, since each program is compiled with all optimizations; test_grad_norm.py and
tests/pipeline/test_bits.py prove the parts.
"""

from functools import cache
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpipe.lowering import lower
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import Layout, Program, Settings
from jaxpipe.schedules import GENERATORS, build
from jaxpipe.training.optimizer import AdamW
from jaxpipe.training.params_hash import params_sha256
from jaxpipe.training.slotted_step import compile_slotted_step
from jaxpipe.training.state import init_state, make_to_canonical, named_params
from jaxpipe.training.step import to_microbatches

NUM_STEPS, NUM_MICROBATCHES, NUM_LAYERS, SEQUENCE = 5, 8, 8, 16

QUICK = {"xla_backend_optimization_level": 0}
"""XLA runs all its passes over the program, LLVM hardly any."""

SETTINGS = AdamW(
    learning_rate=1e-2,
    min_ratio=0.1,
    warmup_steps=2,
    decay_steps=20,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    weight_decay=0.1,
    max_grad_norm=0.2,
)


class Run(NamedTuple):
    """How a run goes through its steps, and where its layers lie; ``as_always``: as training compiles it."""

    schedule: str
    ranks: int
    tied: bool
    layers_per_stage: tuple[int, ...] | None = None
    fuse_backward: bool = False
    transfer_ticks: int = 1
    as_always: bool = False


class Trained(NamedTuple):
    """The hash of the parameters after ``NUM_STEPS``, and the norm of each step's gradient."""

    sha256: str
    norms: list[float]


@cache
def train(run: Run) -> Trained:
    mesh = jax.make_mesh(
        (1, run.ranks), ("dp", "pp"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[: run.ranks]
    )
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        tie_word_embeddings=run.tied,
    )
    schedule = build(run.schedule, num_ranks=run.ranks, num_microbatches=NUM_MICROBATCHES)
    num_stages = schedule.placement.num_stages
    layers = run.layers_per_stage or (NUM_LAYERS // num_stages,) * num_stages
    program = Program(
        llama_contract(config, "einsum"),
        lower(schedule, transfer_ticks=run.transfer_ticks, fuse_backward=run.fuse_backward),
        Layout(schedule.placement, layers, config.vocab_size),
        mesh,
        Settings(),
    )
    return run_steps(program, config, None if run.as_always else QUICK)


def run_steps(program: Program, config: LlamaConfig, options: dict | None) -> Trained:
    layout, mesh = program.layout, program.mesh
    state = init_state(lambda: init_llama(config, 0), SETTINGS, layout=layout, mesh=mesh)
    constants = jax.device_put(llama_constants(config, SEQUENCE), NamedSharding(mesh, PartitionSpec()))
    text = np.random.default_rng(0).integers(0, 50, (NUM_STEPS, NUM_MICROBATCHES, SEQUENCE + 1), np.int32)
    batches = [
        to_microbatches(step[:, :-1], step[:, 1:], num_microbatches=NUM_MICROBATCHES, mesh=mesh)
        for step in text
    ]
    step = compile_slotted_step(program, SETTINGS, state, batches[0], constants=constants, options=options)
    norms = []
    for batch in batches:
        state, metrics = step(state, batch, constants)
        norms.append(float(metrics.grad_norm))
    canonical = make_to_canonical(state, layout=layout, mesh=mesh)(state)
    return Trained(params_sha256(named_params(jax.device_get(canonical["params"]))), norms)


ONE_PIPE = [name for name in [*GENERATORS, "auto"] if name not in ("gpipe", "chimera", "dualpipe")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_PIPE)
def test_training_with_one_pipe_ends_at_the_same_bits(name: str) -> None:
    """As gpipe does; B and W fused or not, messages hidden behind a tick or not."""
    number = ONE_PIPE.index(name)
    run = Run(name, 2, tied=True, fuse_backward=number % 2 == 0, transfer_ticks=1 + number // 2 % 2)
    compare(run, Run("gpipe", 2, tied=True, fuse_backward=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Run("gpipe", 2, tied=True, fuse_backward=True), Run("1f1b", 2, tied=True, layers_per_stage=(3, 5))),
        (Run("1f1b", 4, tied=False), Run("dualpipe_v", 4, tied=False, fuse_backward=True)),
        (Run("chimera", 2, tied=False), Run("dualpipe", 2, tied=False, fuse_backward=True)),
        (Run("chimera", 4, tied=True, transfer_ticks=2), Run("dualpipe", 4, tied=True)),
    ],
    ids=lambda run: f"{run.schedule}-{run.ranks}",
)
def test_training_ends_at_the_same_bits(first: Run, second: Run) -> None:
    """Uneven stages, four ranks, untied; and two pipes, whose bits are their own."""
    compare(first, second)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Run("gpipe", 2, tied=True, as_always=True), Run("zb_v", 2, tied=True, as_always=True)),
        (Run("chimera", 2, tied=False, as_always=True), Run("dualpipe", 2, tied=False, as_always=True)),
    ],
    ids=lambda run: run.schedule,
)
def test_so_it_does_as_runs_compile_it(first: Run, second: Run) -> None:
    compare(first, second)


def compare(first: Run, second: Run) -> None:
    expected, found = train(first), train(second)
    assert found.norms == expected.norms
    assert min(found.norms) > SETTINGS.max_grad_norm, "nothing was clipped"
    assert found.sha256 == expected.sha256
