"""What flash attention holds, as shapes: to be traced where there is no GPU, and never run.

cuDNN's attention can only be traced where cuDNN is. This gives values of the same shapes, which live as long:
forward leaves q, k, v, the result and one fp32 number for each query and head (the log of its normaliser);
backward reads them and gives three gradients. The numbers mean nothing.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_vjp
def flash_shapes(
    q: Float[Array, "b s h d"], k: Float[Array, "b s kv d"], v: Float[Array, "b s kv d"]
) -> Float[Array, "b s h d"]:
    """Shaped like attention's result."""
    return _new(q)


def _forward(q: Array, k: Array, v: Array) -> tuple[Array, tuple[Array, ...]]:
    result, normaliser = _new(q), jnp.max(q.astype(jnp.float32), axis=-1)
    return result, (q, k, v, result, normaliser)


def _backward(saved: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, Array]:
    q, k, v, *_ = jax.lax.optimization_barrier((*saved, gradient))
    return _new(q), _new(k), _new(v)


flash_shapes.defvjp(_forward, _backward)


def _new(array: Array) -> Array:
    """A value of the same shape that no other serves for."""
    return jax.lax.cumsum(array, axis=1)
