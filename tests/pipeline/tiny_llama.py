"""A Llama in which no two sizes are alike: kv heads != heads, head_dim != hidden / heads."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from programs import QUICK, TOLERANCE, assert_leaves_close

from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import Batch, LossAndGradients, Tree
from jaxpipe.training.reference import reference_loss_and_gradients

VOCAB_SIZE, HIDDEN, SEQUENCE, NUM_LAYERS = 50, 16, 16, 4


def make_config(*, tied: bool = False, num_layers: int = NUM_LAYERS) -> LlamaConfig:
    """Weights ten times the usual: layers that nearly pass their input on would hide a wrong one."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        initializer_range=0.2,
        tie_word_embeddings=tied,
    )


CONTRACT = llama_contract(make_config(), "einsum")


@cache
def make_params(num_layers: int = NUM_LAYERS, *, tied: bool = False) -> Tree:
    """Canonical parameters; norm scales differ from 1, which would hide a scale that is left out."""
    params = init_llama(make_config(tied=tied, num_layers=num_layers), 0)
    rng = np.random.default_rng(0)

    def shake(leaf: jax.Array) -> jax.Array:
        return leaf + jnp.asarray(0.2 * rng.normal(size=leaf.shape), leaf.dtype)

    layers = dict(params["layers"], small=jax.tree.map(shake, params["layers"]["small"]))
    return dict(params, layers=layers, final=jax.tree.map(shake, params["final"]))


def make_constants() -> Tree:
    return llama_constants(make_config(), SEQUENCE)


def make_batch(num_microbatches: int, *, batch: int = 2, seed: int = 0) -> Batch:
    """Labels masked in uneven numbers, the second microbatch wholly."""
    rng = np.random.default_rng(seed)
    shape = (num_microbatches, batch, SEQUENCE)
    tokens = rng.integers(0, VOCAB_SIZE, shape)
    labels = np.where(rng.random(shape) < 0.3, -100, rng.integers(0, VOCAB_SIZE, shape))
    if num_microbatches > 1:
        labels[1] = -100
    return Batch(jnp.asarray(tokens, jnp.int32), jnp.asarray(labels, jnp.int32), {})


def assert_equals_reference(got: LossAndGradients, num_microbatches: int, *, tied: bool) -> None:
    """Loss and every leaf of the gradients are those of ``reference``."""
    expected = reference(num_microbatches, tied)
    assert got.num_tokens == expected.num_tokens
    np.testing.assert_allclose(got.loss, expected.loss, rtol=TOLERANCE)
    assert_leaves_close(got.gradients, expected.gradients, tolerance=TOLERANCE)


@cache
def reference(num_microbatches: int, tied: bool) -> LossAndGradients:
    """Loss and gradients of these parameters and this batch, without a pipeline."""

    def run(params: Tree, batch: Batch, constants: Tree) -> LossAndGradients:
        return reference_loss_and_gradients(CONTRACT, params, batch, constants)

    arguments = make_params(tied=tied), make_batch(num_microbatches), make_constants()
    return jax.jit(run).lower(*arguments).compile(QUICK)(*arguments)
