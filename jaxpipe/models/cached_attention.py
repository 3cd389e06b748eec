"""Attention of new positions over all that a cache holds up to each of them.

Two products around a softmax, as in attention.py; keys come with their heads before their positions. The
first new position is a traced number, so one program serves all of them.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

# einsum letters: b batch, k kv head, r query row (of a kv head's query heads), t position in the cache,
# d head_dim


def cached_attention(
    q: Float[Array, "b s h d"],
    k: Float[Array, "b kv t d"],
    v: Float[Array, "b kv t d"],
    first: Int32[Array, ""],
) -> Float[Array, "b s h d"]:
    """softmax(q k / sqrt(d)) v of queries at ``first`` and after, each over positions up to its own; the
    softmax is fp32."""
    batch, length, heads, size = q.shape
    kv_heads, num_positions = k.shape[1:3]
    rows = jnp.moveaxis(q.reshape(batch, length, kv_heads, heads // kv_heads, size), 1, 3)
    rows = rows.reshape(batch, kv_heads, -1, size)
    scores = jnp.einsum("bkrd,bktd->bkrt", rows, k, preferred_element_type=jnp.float32) / np.sqrt(size)
    own = jnp.tile(first + jnp.arange(length), heads // kv_heads)
    visible = jnp.arange(num_positions)[None] <= own[:, None]
    weights = jax.nn.softmax(jnp.where(visible[None, None], scores, -jnp.inf), axis=-1).astype(v.dtype)
    mixed = jnp.einsum("bkrt,bktd->bkrd", weights, v).reshape(batch, heads, length, size)
    return jnp.swapaxes(mixed, 1, 2)
