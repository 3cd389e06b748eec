"""Seconds of the optimizer for each parameter of a device: norm, clipping, moments and weights."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from jaxpipe.pipeline import Tree
from jaxpipe.pipeline.loops import tied
from jaxpipe.profiling.timing import Seconds, seconds_each
from jaxpipe.training.optimizer import AdamW, apply_gradients, init_moments

_MOST = 256


def time_update(settings: AdamW, params: Tree, *, num_rounds: int) -> Seconds:
    """Of one parameter, on the first device that holds a part of ``params`` (their shapes count alone)."""
    params = jax.tree.map(lambda leaf: leaf.addressable_shards[0].data.astype(jnp.float32), params)
    gradients = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1e-3), params)
    moments = init_moments(settings, params)

    def updates(params: Tree, moments: optax.ScaleByAdamState, gradients: Tree, count: Array) -> tuple:
        def update(turn: Array, state: tuple) -> tuple:
            # tied to the turn: XLA would form the norm once, before all turns
            new = apply_gradients(settings, *state, gradients=tied(turn, gradients))
            return new.params, new.moments

        return jax.lax.fori_loop(0, count, update, (params, moments))

    compiled = jax.jit(updates).lower(params, moments, gradients, jnp.int32(0)).compile()

    def run(name: str, count: int) -> None:
        jax.block_until_ready(compiled(params, moments, gradients, jnp.int32(count)))

    seconds = seconds_each(run, ["update"], num_rounds=num_rounds, most=_MOST)["update"]
    return seconds.scaled(1 / sum(leaf.size for leaf in jax.tree.leaves(params)))
