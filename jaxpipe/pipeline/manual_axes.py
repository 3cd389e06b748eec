"""Marking values as different on each device of a mesh axis, inside ``shard_map``.

``shard_map`` tracks for each value over which mesh axes it varies, and a loop's carry must vary over the
same axes on its way in and out. What is not marked is a promise that all devices hold the same.
"""

import jax
import jax.numpy as jnp

from jaxpipe.pipeline.contract import Tree


def varying_axes(value: jax.Array | jax.ShapeDtypeStruct) -> frozenset[str]:
    """The mesh axes over which an array (or the shape of one) varies; none outside ``shard_map``."""
    struct = value if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value)
    axes = struct.manual_axis_type  # None for the shape of a value outside ``shard_map``
    return frozenset() if axes is None else axes.varying


def varying(tree: Tree, axes: tuple[str, ...]) -> Tree:
    """The same values, marked as varying over ``axes``."""

    def mark(leaf: jax.Array) -> jax.Array:
        missing = tuple(axis for axis in axes if axis not in varying_axes(leaf))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(mark, tree)


def zeros_like_struct(struct: jax.ShapeDtypeStruct) -> jax.Array:
    """Zeros of this shape and dtype that vary over the same axes."""
    return varying(jnp.zeros(struct.shape, struct.dtype), tuple(varying_axes(struct)))
