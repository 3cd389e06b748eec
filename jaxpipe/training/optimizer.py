"""AdamW (Loshchilov and Hutter 2019) with warm-up, a cosine, and clipping by the one true global norm.

    g <- g min(1, max_grad_norm / |g|)              |g| over all parameters of the model, fp32
    p <- p - lr (adam(g) + weight_decay p)          no decay for norm scales

The learning rate of step k (the first is 1) rises linearly to its peak at ``warmup_steps`` and falls along
a cosine to ``min_ratio`` of it at ``decay_steps``, where it stays. All is elementwise, so it runs on whatever
shards; only the norm is a sum over the mesh, and whoever knows the layout gives it (grad_norm.py). Layers of
padding have gradient 0 and stay 0.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int32

from jaxpipe.pipeline.contract import Tree


class AdamW(NamedTuple):
    """The settings; see the module's equations. ``max_grad_norm`` 0: no clipping."""

    learning_rate: float
    min_ratio: float
    warmup_steps: int
    decay_steps: int
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    max_grad_norm: float


class Update(NamedTuple):
    """New parameters and moments, and what is worth logging."""

    params: Tree
    moments: optax.OptState
    grad_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]


def init_moments(settings: AdamW, params: Tree) -> optax.ScaleByAdamState:
    """Both moments, zero, shaped like the parameters; and the count of steps."""
    return _adam(settings).init(params)


def apply_gradients(
    settings: AdamW,
    params: Tree,
    moments: optax.ScaleByAdamState,
    *,
    gradients: Tree,
    global_norm: Callable[[Tree], Float[Array, ""]] = optax.tree.norm,
) -> Update:
    """One step; all trees in the same layout, fp32. optax's norm adds in whatever order the layout has."""
    norm = global_norm(gradients)
    if settings.max_grad_norm > 0:
        factor = jnp.minimum(1.0, settings.max_grad_norm / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
        gradients = jax.tree.map(lambda gradient: gradient * factor, gradients)
    learning_rate = learning_rate_at(settings, moments.count + 1)
    updates, moments = _adam(settings).update(gradients, moments)
    decay = optax.add_decayed_weights(settings.weight_decay, mask=_decayed)
    updates, _ = decay.update(updates, decay.init(params), params)
    params = jax.tree.map(lambda param, update: param - learning_rate * update, params, updates)
    return Update(params, moments, norm, learning_rate)


def learning_rate_at(settings: AdamW, step: Int32[Array, ""] | int) -> Float[Array, ""]:
    """The learning rate of a step, counted from 1."""
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=settings.learning_rate,
        warmup_steps=settings.warmup_steps,
        decay_steps=max(settings.decay_steps, settings.warmup_steps + 1),
        end_value=settings.learning_rate * settings.min_ratio,
    )
    return jnp.asarray(schedule(step), jnp.float32)


def _adam(settings: AdamW) -> optax.GradientTransformation:
    return optax.scale_by_adam(settings.beta1, settings.beta2, settings.eps)


def _decayed(params: Tree) -> Tree:
    """Which parameters decay: all but the small ones, that is norm scales."""
    layers = {
        "kernels": jax.tree.map(lambda _: True, params["layers"]["kernels"]),
        "small": jax.tree.map(lambda _: False, params["layers"]["small"]),
    }
    return {group: group != "final" for group in params} | {
        "layers": layers,
        "final": jax.tree.map(lambda _: False, params["final"]),
    }
