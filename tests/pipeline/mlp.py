"""A stage that is no Llama: a gated MLP with a scale, through the same contract, and its plain loss."""

import jax
import jax.numpy as jnp
import numpy as np
from programs import QUICK, TOLERANCE, assert_leaves_close

from jaxpipe.pipeline.contract import Batch, LossAndGradients, StageContract, Tree
from jaxpipe.pipeline.split_vjp import dense

VOCAB_SIZE, HIDDEN, INNER, SEQUENCE = 13, 8, 12, 6


def layer(params: Tree, x: jax.Array, constants: Tree, extras: Tree) -> jax.Array:
    """Two kernels share their input; constants and extras both take part, so that losing one shows."""
    scale, positions = params["small"]["scale"][None, None], constants["positions"][None, :, None]
    inner = dense(x * scale * positions, params["kernels"]["in"])
    gated = jax.nn.silu(inner["gate"]) * jnp.tanh(inner["up"]) + extras["shift"][..., None]
    return x + dense(gated, params["kernels"]["out"])["down"]


def final(params: Tree, y: jax.Array) -> jax.Array:
    """No tanh: where it saturates, its gradient loses the digits that the tests compare."""
    scale = params["scale"].reshape((1,) * (y.ndim - 1) + (-1,))
    return y * jax.lax.rsqrt(1 + jnp.mean(y * y, axis=-1, keepdims=True)) * scale


CONTRACT = StageContract(layer, final)


def make_params(num_layers: int, *, tied: bool = False, vocab_size: int = VOCAB_SIZE, seed: int = 0) -> Tree:
    """Weights so small that fp32 is within 1e-6 of float64 after nine layers; with 0.3 it is off by 5e-6."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(0.2 * rng.normal(size=shape), jnp.float32)

    params = {
        "embedding": normal(vocab_size, HIDDEN),
        "layers": {
            "kernels": {
                "in": {"gate": normal(num_layers, HIDDEN, INNER), "up": normal(num_layers, HIDDEN, INNER)},
                "out": {"down": normal(num_layers, INNER, HIDDEN)},
            },
            "small": {"scale": 1 + normal(num_layers, HIDDEN)},
        },
        "final": {"scale": 1 + normal(HIDDEN)},
    }
    return params if tied else params | {"head": normal(vocab_size, HIDDEN)}


def make_batch(
    num_microbatches: int, *, batch: int = 2, vocab_size: int = VOCAB_SIZE, seed: int = 0
) -> Batch:
    """Labels masked in uneven numbers, the second microbatch wholly."""
    rng = np.random.default_rng(seed)
    shape = (num_microbatches, batch, SEQUENCE)
    tokens = rng.integers(0, vocab_size, shape)
    labels = np.where(rng.random(shape) < 0.3, -100, rng.integers(0, vocab_size, shape))
    if num_microbatches > 1:
        labels[1] = -100
    shift = rng.normal(size=shape).astype(np.float32)
    return Batch(
        jnp.asarray(tokens, jnp.int32), jnp.asarray(labels, jnp.int32), {"shift": jnp.asarray(shift)}
    )


def make_constants() -> Tree:
    return {"positions": jnp.linspace(0.5, 1.5, SEQUENCE)}


def assert_equals_plain(
    got: LossAndGradients, params: Tree, batch: Batch, *, tolerance: float = TOLERANCE
) -> None:
    """Loss and every leaf of the gradients are those of ``plain_loss``."""
    arguments = params, batch, make_constants()
    loss, gradients = jax.jit(jax.value_and_grad(plain_loss)).lower(*arguments).compile(QUICK)(*arguments)
    assert got.num_tokens == np.sum(np.asarray(batch.labels) >= 0)
    np.testing.assert_allclose(got.loss, loss, rtol=tolerance)
    assert_leaves_close(got.gradients, gradients, tolerance=tolerance)


def plain_loss(params: Tree, batch: Batch, constants: Tree) -> jax.Array:
    """The same model with none of ours but ``dense``: no microbatches, dense softmax, autodiff throughout."""
    tokens, labels, shift = (
        leaf.reshape(-1, SEQUENCE) for leaf in (batch.tokens, batch.labels, batch.extras["shift"])
    )
    x = params["embedding"][tokens]
    for index in range(params["layers"]["small"]["scale"].shape[0]):
        one = jax.tree.map(lambda leaf, index=index: leaf[index], params["layers"])
        x = layer(one, x, constants, {"shift": shift})
    logits = final(params["final"], x) @ params.get("head", params["embedding"]).T
    valid = labels >= 0
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.where(valid, labels, 0)[..., None], -1)
    return -jnp.sum(chosen[..., 0] * valid) / jnp.maximum(jnp.sum(valid), 1)
