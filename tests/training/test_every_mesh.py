"""Loss, gradients and three steps of training equal the un-pipelined reference on every mesh.

Data, pipeline, tensor and sequence parallelism, ZeRO, remat and schedules together (mesh_design.py).
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import mesh_design
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from mesh_design import NUM_MICROBATCHES, Choice

from jaxpipe.lowering import lower
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import (
    Batch,
    Layout,
    Program,
    Settings,
    Sharding,
    Tree,
    balanced_layers,
    make_loss,
    make_loss_and_gradients,
    to_canonical_layout,
    to_stage_layout,
)
from jaxpipe.schedules import build, forward_only
from jaxpipe.training.grad_norm import make_global_norm
from jaxpipe.training.optimizer import AdamW, apply_gradients, init_moments
from jaxpipe.training.reference import reference_loss, reference_loss_and_gradients
from jaxpipe.training.state import TrainState, state_shardings
from jaxpipe.training.step import to_microbatches

QUICK = {"xla_backend_optimization_level": 0}
"""XLA runs all its passes over the program, LLVM hardly any."""

NUM_STEPS, BATCH, SEQUENCE, VOCAB_SIZE = 3, 8, 8, 50

TOLERANCE = 1e-5
"""Of the numerics contract. fp32 rounding gives about 1e-6; one token of thousands lost gives 1e-4."""

OPTIMIZER = AdamW(
    learning_rate=1e-2,
    min_ratio=0.1,
    warmup_steps=1,
    decay_steps=20,
    beta1=0.9,
    beta2=0.95,
    eps=1e-2,  # so large that an element whose gradient is rounding alone moves by no more than that
    weight_decay=0.1,
    max_grad_norm=0.5,  # below every norm here
)


def make_config(*, tied: bool, num_layers: int) -> LlamaConfig:
    """kv heads that eight devices can share, and are fewer than heads; sizes unlike each other."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=num_layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=2,
        initializer_range=0.2,
        tie_word_embeddings=tied,
    )


class Trained(NamedTuple):
    """Of all steps losses and norms, the first step's gradients, and the last parameters; canonical."""

    losses: list[float]
    norms: list[float]
    gradients: Tree
    params: Tree
    evaluated: tuple[float, int]


@cache
def make_text() -> tuple[np.ndarray, np.ndarray]:
    """Tokens and labels ``[steps, global batch, sequence]``, labels masked in uneven numbers."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, VOCAB_SIZE, (NUM_STEPS, NUM_MICROBATCHES * BATCH, SEQUENCE + 1), np.int32)
    labels = np.where(rng.random(text[..., 1:].shape) < 0.3, -100, text[..., 1:]).astype(np.int32)
    labels[:, BATCH : 2 * BATCH] = -100  # a microbatch without any
    labels[:, 2 * BATCH : 2 * BATCH + BATCH // 2] = -100  # and one where half of the copies have none
    return text[..., :-1], labels


@cache
def make_params(*, tied: bool, num_layers: int) -> Tree:
    """Canonical; norm scales differ from 1: one that is left out would not show otherwise."""
    params = init_llama(make_config(tied=tied, num_layers=num_layers), 0)
    rng = np.random.default_rng(1)

    def shake(leaf: jax.Array) -> jax.Array:
        return leaf + jnp.asarray(0.2 * rng.normal(size=leaf.shape), jnp.float32)

    layers = dict(params["layers"], small=jax.tree.map(shake, params["layers"]["small"]))
    return dict(params, layers=layers, final=jax.tree.map(shake, params["final"]))


@cache
def reference(*, tied: bool, num_layers: int) -> Trained:
    """One device, layers in model order, autodiff; optax's own norm."""
    config = make_config(tied=tied, num_layers=num_layers)
    contract, constants = llama_contract(config, "einsum"), llama_constants(config, SEQUENCE)
    params = make_params(tied=tied, num_layers=num_layers)
    state = TrainState(params, init_moments(OPTIMIZER, params))

    def step(state: TrainState, batch: Batch) -> tuple:
        loss, _, gradients = reference_loss_and_gradients(contract, state.params, batch, constants)
        update = apply_gradients(OPTIMIZER, state.params, state.moments, gradients=gradients)
        return TrainState(update.params, update.moments), loss, update.grad_norm, gradients

    batches = [
        Batch(*(jnp.asarray(array.reshape(NUM_MICROBATCHES, BATCH, SEQUENCE)) for array in arrays), {})
        for arrays in zip(*make_text(), strict=True)
    ]
    compiled = jax.jit(step).lower(state, batches[0]).compile(QUICK)
    loss, num_tokens = jax.jit(lambda params, batch: reference_loss(contract, params, batch, constants))(
        params, batches[0]
    )
    return run(compiled, state, batches)._replace(evaluated=(float(loss), int(num_tokens)))


def run(compiled, state: TrainState, batches: list[Batch]) -> Trained:
    losses, norms, first = [], [], None
    for batch in batches:
        state, loss, norm, gradients = compiled(state, batch)
        losses.append(float(loss))
        norms.append(float(norm))
        first = gradients if first is None else first
    return Trained(losses, norms, jax.device_get(first), jax.device_get(state.params), (0.0, 0))


def make_mesh(dp: int, pp: int, tp: int) -> Mesh:
    devices = jax.devices()[: dp * pp * tp]
    return jax.make_mesh((dp, pp, tp), ("dp", "pp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=devices)


@cache
def train(choice: Choice, *, evaluate: bool = False) -> Trained:
    """The same through the executor, optimizer and the norm of the mesh; evaluated before the first step."""
    config = make_config(tied=choice.tied, num_layers=choice.num_layers)
    contract, mesh = llama_contract(config, "einsum"), make_mesh(*choice.mesh)
    schedule = build(choice.schedule, num_ranks=choice.mesh[1], num_microbatches=NUM_MICROBATCHES)
    sharding = Sharding(choice.mesh[2], choice.zero, choice.sequence_parallel, contract.splits)
    layers = balanced_layers(choice.num_layers, schedule.placement.num_stages)
    layout = Layout(schedule.placement, layers, VOCAB_SIZE, sharding)
    table = lower(schedule, transfer_ticks=choice.transfer_ticks, fuse_backward=choice.fuse_backward)
    settings = Settings(remat=choice.remat, head_tokens=24, fill=float("nan"))
    program = Program(contract, table, layout, mesh, settings)
    constants = jax.device_put(llama_constants(config, SEQUENCE), NamedSharding(mesh, PartitionSpec()))
    loss_and_gradients, norm = make_loss_and_gradients(program), make_global_norm(layout, mesh)

    def step(state: TrainState, batch: Batch) -> tuple:
        loss, _, gradients = loss_and_gradients(state.params, batch, constants)
        update = apply_gradients(
            OPTIMIZER, state.params, state.moments, gradients=gradients, global_norm=norm
        )
        return TrainState(update.params, update.moments), loss, update.grad_norm, gradients

    params = to_stage_layout(make_params(tied=choice.tied, num_layers=choice.num_layers), layout)
    state = TrainState(params, init_moments(OPTIMIZER, params))
    state = jax.device_put(state, state_shardings(state, mesh, sharding))
    batches = [
        to_microbatches(*arrays, num_microbatches=NUM_MICROBATCHES, mesh=mesh)
        for arrays in zip(*make_text(), strict=True)
    ]
    evaluated = 0.0, 0
    if evaluate:
        placement = replace(
            schedule.placement,
            stage_ranks=schedule.placement.stage_ranks[:1],
            stage_chunks=schedule.placement.stage_chunks[:1],
        )
        forward = program._replace(
            table=lower(forward_only(placement, NUM_MICROBATCHES)),
            layout=replace(layout, placement=placement),
        )
        compiled = jax.jit(make_loss(forward)).lower(state.params, batches[0], constants).compile(QUICK)
        loss, num_tokens = compiled(state.params, batches[0], constants)
        evaluated = float(loss), int(num_tokens)
    trained = run(jax.jit(step).lower(state, batches[0]).compile(QUICK), state, batches)
    return trained._replace(
        evaluated=evaluated,
        gradients=to_canonical_layout(trained.gradients, layout),
        params=to_canonical_layout(trained.params, layout),
    )


def assert_leaves_close(got: Tree, expected: Tree) -> None:
    """Each leaf within the tolerance of the largest value of the one expected."""
    chex.assert_trees_all_equal_structs(got, expected)
    for (path, leaf), wanted in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        largest, off = np.abs(wanted).max(), np.abs(np.asarray(leaf) - wanted).max()
        assert off <= TOLERANCE * largest, f"{jax.tree_util.keystr(path)}: off by {off:.2e} of {largest:.2e}"


def assert_equal(got: Trained, expected: Trained) -> None:
    assert min(expected.norms) > OPTIMIZER.max_grad_norm, "nothing was clipped"
    np.testing.assert_allclose(got.losses, expected.losses, rtol=TOLERANCE)
    np.testing.assert_allclose(got.norms, expected.norms, rtol=TOLERANCE)
    assert_leaves_close(got.gradients, expected.gradients)
    assert_leaves_close(got.params, expected.params)


CHOICES = mesh_design.choices()


def test_every_pair_of_choices_is_tried() -> None:
    assert mesh_design.pairs() == set().union(*map(mesh_design.pairs_of, CHOICES))
    assert {choice.mesh for choice in CHOICES} == set(mesh_design.MESHES)
    assert len(mesh_design.MESHES) == 1 + 3 + 6 + 10


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_training_equals_the_reference(choice: Choice) -> None:
    assert_equal(train(choice), reference(tied=choice.tied, num_layers=choice.num_layers))


ALL_AT_ONCE = Choice((2, 2, 2), "1f1b", 3, "full", True, False, 16, 1, True)
"""Three axes, ZeRO 3 and sequence parallelism."""


@pytest.mark.parametrize(
    "choice",
    [ALL_AT_ONCE, ALL_AT_ONCE._replace(schedule="dualpipe", zero=1, tied=True, num_layers=17)],
    ids=str,
)
def test_evaluation_on_a_mesh_equals_the_reference(choice: Choice) -> None:
    loss, num_tokens = train(choice, evaluate=True).evaluated
    expected, expected_tokens = reference(tied=choice.tied, num_layers=choice.num_layers).evaluated
    assert num_tokens == expected_tokens
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize("zero", [1, 3])
def test_all_schedules_of_one_pipe_have_the_same_bits_on_a_mesh(zero: int) -> None:
    """B and W on one tick or on two, one chunk or several, messages hidden or not."""
    first = train(ALL_AT_ONCE._replace(zero=zero))
    for schedule, fuse, ticks in (("zb_h1", False, 2), ("interleaved", True, 1), ("zb_v", False, 1)):
        choice = ALL_AT_ONCE._replace(zero=zero, schedule=schedule, fuse_backward=fuse, transfer_ticks=ticks)
        found = train(choice)
        assert found.losses == first.losses
        assert found.norms == first.norms
        chex.assert_trees_all_equal(found.params, first.params)
