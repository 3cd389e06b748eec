"""Causal grouped-query attention (Ainslie et al. 2023, "GQA"), by the implementation that suits the backend.

einsum   two products around a softmax, written out: fastest on CPU (docs/measurements.md)
xla      jax.nn.dot_product_attention as XLA compiles it
cudnn    the same through cuDNN's flash attention: GPU, bf16 or fp16
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# einsum letters: b batch, s query position, t key position, k kv head, g query head of its group, d head_dim

Implementation = Literal["einsum", "xla", "cudnn"]


def attention_for(platform: str, dtype: jnp.dtype) -> Implementation:
    """The implementation for a backend (``cpu``, ``gpu``, ``tpu``) and a compute dtype."""
    if platform == "cpu":
        return "einsum"
    if platform == "gpu" and jnp.dtype(dtype).itemsize == 2:
        return "cudnn"
    return "xla"


def causal_attention(
    q: Float[Array, "b s h d"],
    k: Float[Array, "b s kv d"],
    v: Float[Array, "b s kv d"],
    *,
    implementation: Implementation,
) -> Float[Array, "b s h d"]:
    """softmax(q k / sqrt(d)) v over positions up to each query's own; the softmax is fp32."""
    if implementation == "einsum":
        return _einsum_attention(q, k, v)
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)


def _einsum_attention(q: Array, k: Array, v: Array) -> Array:
    batch, length, heads, size = q.shape
    q = q.reshape(batch, length, k.shape[2], heads // k.shape[2], size)
    scores = jnp.einsum("bskgd,btkd->bkgst", q, k, preferred_element_type=jnp.float32) / np.sqrt(size)
    visible = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(visible[None, None, None], scores, -jnp.inf), axis=-1).astype(v.dtype)
    return jnp.einsum("bkgst,btkd->bskgd", weights, v).reshape(batch, length, heads, size)
