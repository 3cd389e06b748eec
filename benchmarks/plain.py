"""Plain gradient accumulation at its fastest: what the executor is held against on one rank.

A scan over microbatches that adds up what autodiff gives, as in ``training.reference``, the oracle of
the tests and the un-pipelined step of the other figures. Here the layers stand one after the other instead of
in a scan, whose gradients are stacked and then copied, and the loss is the logarithm of a sum less a logit:
on CPU 8 to 14 % faster (docs/measurements.md), for more time to compile.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from benchmarks.programs import LossAndGradientsOf
from jaxpipe.pipeline import Batch, LossAndGradients, StageContract, Tree


def accumulation(contract: StageContract, *, recompute: bool) -> LossAndGradientsOf:
    """Loss and gradients of canonical fp32 parameters, where every label is valid."""
    layer = jax.checkpoint(contract.layer) if recompute else contract.layer

    def loss_of(params: Tree, microbatch: Batch, constants: Tree) -> Float[Array, ""]:
        x = params["embedding"][microbatch.tokens]
        for index in range(len(jax.tree.leaves(params["layers"])[0])):
            x = layer(jax.tree.map(lambda leaf: leaf[index], params["layers"]), x, constants, {})  # noqa: B023
        hidden = contract.final(params["final"], x)
        logits = jnp.einsum("bsd,nd->bsn", hidden, params.get("head", params["embedding"]))
        chosen = jnp.take_along_axis(logits, microbatch.labels[..., None], axis=-1)[..., 0]
        return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - chosen)

    def loss_and_gradients(params: Tree, batch: Batch, constants: Tree) -> LossAndGradients:
        scale = 1.0 / batch.labels.size

        def step(carry: tuple[Array, Tree], microbatch: Batch) -> tuple[tuple[Array, Tree], None]:
            loss, gradients = carry
            value, new = jax.value_and_grad(lambda params: scale * loss_of(params, microbatch, constants))(
                params
            )
            return (loss + value, jax.tree.map(jnp.add, gradients, new)), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        (loss, gradients), _ = jax.lax.scan(step, (jnp.zeros(()), zeros), batch)
        return LossAndGradients(loss, jnp.int32(batch.labels.size), gradients)

    return loss_and_gradients
