"""AdamW (Loshchilov and Hutter 2019) with warm-up, a cosine, and clipping by the one true global norm.

    g <- g min(1, max_grad_norm / |g|)              |g| over all parameters of the model, fp32
    p <- p - lr (adam(g) + weight_decay p)          no decay for norm scales

The learning rate of step k (the first is 1) rises linearly to its peak at ``warmup_steps`` and falls along
a cosine to ``min_ratio`` of it at ``decay_steps``, where it stays. All is elementwise, so it runs on whatever
shards; only the norm is a sum over the mesh, and whoever knows the layout gives it (grad_norm.py). Layers of
padding have gradient 0 and stay 0.

A step whose loss or norm is not finite can be skipped: parameters, moments and count then stay as they were,
to the bit, and with the count the learning rate. A norm that overflows counts, though gradients are finite:
clipping by it would leave nothing. Loss and norm are the same on all devices, so all skip or none does.
What is kept is chosen for the moments first, and the parameters read what was chosen: if they read what Adam
proposed, both would be in memory.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int32

from jaxpipe.pipeline.contract import Tree
from jaxpipe.training.grad_norm import GradientNorm, norm_as_it_lies


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
    """Parameters and moments after the step, and what is worth logging.

    squares: what the norm is made of (grad_norm.py).
    is_finite: loss and norm are.
    """

    params: Tree
    moments: optax.ScaleByAdamState
    grad_norm: Float[Array, ""]
    squares: Float[Array, " sums"]
    learning_rate: Float[Array, ""]
    is_finite: Bool[Array, ""]


def init_moments(settings: AdamW, params: Tree) -> optax.ScaleByAdamState:
    """Both moments, zero, shaped like the parameters; and the count of updates."""
    return _adam(settings).init(params)


def apply_gradients(
    settings: AdamW,
    params: Tree,
    moments: optax.ScaleByAdamState,
    *,
    gradients: Tree,
    global_norm: Callable[[Tree], GradientNorm] = norm_as_it_lies,
    loss: Float[Array, ""] | float = 0.0,
    skip_non_finite: bool = False,
) -> Update:
    """One step; all trees in the same layout, fp32.

    skip_non_finite: change nothing unless ``loss`` and norm are finite.
    """
    norm, squares = global_norm(gradients)
    is_finite = jnp.isfinite(loss) & jnp.isfinite(norm)

    def kept(new: Tree, old: Tree) -> Tree:
        if not skip_non_finite:
            return new
        return jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), new, old)

    if settings.max_grad_norm > 0:
        factor = jnp.minimum(1.0, settings.max_grad_norm / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
        gradients = jax.tree.map(lambda gradient: gradient * factor, gradients)
    learning_rate = learning_rate_at(settings, moments.count + 1)
    _, proposed = _adam(settings).update(gradients, moments)
    moments = kept(proposed, moments)
    updates = _direction(settings, moments)
    decay = optax.add_decayed_weights(settings.weight_decay, mask=_decayed)
    updates, _ = decay.update(updates, decay.init(params), params)
    changed = jax.tree.map(lambda param, update: param - learning_rate * update, params, updates)
    return Update(kept(changed, params), moments, norm, squares, learning_rate, is_finite)


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


def _direction(settings: AdamW, moments: optax.ScaleByAdamState) -> Tree:
    """m / (sqrt(v) + eps) of the corrected moments, as optax's Adam has it for the step that led to them."""
    mean = optax.tree.bias_correction(moments.mu, settings.beta1, moments.count)
    square = optax.tree.bias_correction(moments.nu, settings.beta2, moments.count)
    return jax.tree.map(lambda mean, square: mean / (jnp.sqrt(square) + settings.eps), mean, square)


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
