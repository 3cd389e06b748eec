"""What layers keep of the positions that a decoding has read, such as keys and values.

A rank keeps that of its own layers, each device that of its own heads. Every leaf is

    [chunks, layers, batch, heads, positions, ...]

and lives in the carry of the decoding's loops, where XLA updates it in place: only the new positions are
written. What lies beyond them was never written, or belongs to padding; whoever reads must not look there.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from jaxpipe.pipeline.contract import Tree

_POSITIONS_AXIS = 2
"""Of what one layer keeps."""


class Place(NamedTuple):
    """Where in the cache a layer writes: its chunk, its index there, and the first new position."""

    chunk: Int32[Array, ""]
    layer: Int32[Array, ""]
    position: Int32[Array, ""]


def empty_cache(of_layer: Tree, *, num_chunks: int, num_layers: int) -> Tree:
    """Zeros for every layer of a rank, from the shapes of what one layer keeps."""
    return jax.tree.map(
        lambda leaf: jnp.zeros((num_chunks, num_layers, *leaf.shape), leaf.dtype),
        of_layer,
    )


def remember(cache: Tree, new: Tree, place: Place) -> tuple[Tree, Tree]:
    """The cache with ``new`` in its place, and all that it then holds of this layer.

    ``new`` has the leaves of one layer, ``[batch, heads, new positions, ...]``; they must fit in.
    """
    cache = jax.tree.map(lambda leaf, value: _write(leaf, value, place), cache, new)
    return cache, jax.tree.map(lambda leaf: _read(leaf, place), cache)


def _write(leaf: Array, value: Array, place: Place) -> Array:
    starts = dict(zip((0, 1, 2 + _POSITIONS_AXIS), place, strict=True))
    start = [starts.get(axis, jnp.int32(0)) for axis in range(leaf.ndim)]
    return jax.lax.dynamic_update_slice(leaf, value[None, None].astype(leaf.dtype), start)


def _read(leaf: Array, place: Place) -> Array:
    start = (place.chunk, place.layer, *np.zeros(leaf.ndim - 2, np.int32))
    return jax.lax.dynamic_slice(leaf, start, (1, 1, *leaf.shape[2:]))[0, 0]
