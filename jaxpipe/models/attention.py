"""Causal grouped-query attention (Ainslie et al. 2023, "GQA"), by the implementation that suits the backend.

With segments a query sees positions of its own segment alone: the weight of every other one is exactly 0, so
what stands there changes no bit of the result.

einsum   two products around a softmax, written out: fastest on CPU (docs/measurements.md)
xla      jax.nn.dot_product_attention as XLA compiles it
cudnn    the same through cuDNN's flash attention: GPU, bf16 or fp16
shapes   what that holds, to be traced for its memory where there is no GPU (flash_shapes.py)
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from jaxpipe.models.flash_shapes import flash_shapes

# einsum letters: b batch, k kv head, r query row (of a kv head's query heads), t key position, d head_dim

Implementation = Literal["einsum", "xla", "cudnn", "shapes"]


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
    segments: Int32[Array, "b s"] | None = None,
) -> Float[Array, "b s h d"]:
    """softmax(q k / sqrt(d)) v over positions up to each query's own; the softmax is fp32.

    segments: the number of the document that each position belongs to; None: all belong together.
    """
    if implementation == "einsum":
        return _einsum_attention(q, k, v, segments)
    if implementation == "shapes":
        return flash_shapes(q, k, v)
    mask = None if segments is None else _same_segment(segments)[:, None]
    return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=True, implementation=implementation)


def _same_segment(segments: Int32[Array, "b s"]) -> Bool[Array, "b s s"]:
    return segments[:, :, None] == segments[:, None, :]


def _einsum_attention(q: Array, k: Array, v: Array, segments: Array | None) -> Array:
    """Heads before positions, and a group's query heads one below the other: plain batched products.

    On CPU a layer takes 0.88 of the time that it takes with the positions in front (measured).
    """
    batch, length, heads, size = q.shape
    kv_heads = k.shape[2]
    q = jnp.moveaxis(q.reshape(batch, length, kv_heads, heads // kv_heads, size), 1, 3)
    q = q.reshape(batch, kv_heads, -1, size)  # position s of query head g of a group is row g length + s
    k, v = jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)
    scores = jnp.einsum("bkrd,bktd->bkrt", q, k, preferred_element_type=jnp.float32) / np.sqrt(size)
    visible = jnp.tril(jnp.ones((length, length), bool))[None]
    if segments is not None:
        visible = visible & _same_segment(segments)
    visible = jnp.tile(visible, (1, heads // kv_heads, 1))[:, None]
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1).astype(v.dtype)
    mixed = jnp.einsum("bkrt,bktd->bkrd", weights, v).reshape(batch, heads, length, size)
    return jnp.swapaxes(mixed, 1, 2)
