"""The un-pipelined loss and gradient: the oracle of the tests, and what the benchmark is measured against.

The same layer and the same parameters, but none of the machinery: one device, layers in model order,
a dense softmax over the whole vocabulary, autodiff, and gradients summed over the microbatches.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from jaxpipe.pipeline.contract import Batch, LossAndGradients, StageContract, Tree


def reference_loss(
    contract: StageContract, params: Tree, batch: Batch, constants: Tree, *, recompute: bool = False
) -> tuple[Float[Array, ""], Int32[Array, ""]]:
    """``(summed loss, valid tokens)`` of canonical parameters, over all microbatches."""

    def step(total: Array, microbatch: Batch) -> tuple[Array, None]:
        return total + _summed_loss(contract, params, microbatch, constants, recompute), None

    return jax.lax.scan(step, jnp.zeros(()), batch)[0], jnp.sum(batch.labels >= 0, dtype=jnp.int32)


def reference_loss_and_gradients(
    contract: StageContract, params: Tree, batch: Batch, constants: Tree, *, recompute: bool = False
) -> LossAndGradients:
    """Loss per valid token and its gradient, like the pipeline's, for canonical fp32 parameters.

    ``recompute`` keeps only each layer's input, as ``remat full`` does.
    """
    num_tokens = jnp.sum(batch.labels >= 0, dtype=jnp.int32)
    scale = 1.0 / jnp.maximum(num_tokens, 1).astype(jnp.float32)

    def step(carry: tuple[Array, Tree], microbatch: Batch) -> tuple[tuple[Array, Tree], None]:
        loss, gradients = carry

        def scaled_loss(params: Tree) -> Array:
            return _summed_loss(contract, params, microbatch, constants, recompute) * scale

        value, gradient = jax.value_and_grad(scaled_loss)(params)
        return (loss + value, jax.tree.map(jnp.add, gradients, gradient)), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    (loss, gradients), _ = jax.lax.scan(step, (jnp.zeros(()), zeros), batch)
    return LossAndGradients(loss, num_tokens, gradients)


def reference_logits(
    contract: StageContract,
    params: Tree,
    tokens: Int32[Array, "b s"],
    constants: Tree,
    extras: Tree,
    *,
    recompute: bool = False,
) -> Float[Array, "b s n"]:
    """The logits of canonical parameters; ``extras`` as in ``Batch``, without the leading dimension."""
    layer: Callable = jax.checkpoint(contract.layer) if recompute else contract.layer

    def apply(x: Array, layer_params: Tree) -> tuple[Array, None]:
        return layer(layer_params, x, constants, extras), None

    x, _ = jax.lax.scan(apply, params["embedding"][tokens], params["layers"])
    hidden = contract.final(params["final"], x)
    return jnp.einsum("bsd,nd->bsn", hidden, params.get("head", params["embedding"]))


def _summed_loss(
    contract: StageContract, params: Tree, microbatch: Batch, constants: Tree, recompute: bool
) -> Float[Array, ""]:
    """The loss of one microbatch (no leading dimension), summed over its valid tokens."""
    logits = reference_logits(
        contract, params, microbatch.tokens, constants, microbatch.extras, recompute=recompute
    )
    valid = microbatch.labels >= 0
    labels = jnp.where(valid, microbatch.labels, 0)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]
    return -jnp.sum(jnp.where(valid, chosen, 0.0))
