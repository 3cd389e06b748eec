"""Inside ``shard_map``: what lies on each device without its first dimension, which is 1 there, and with it.

Both are reshapes that move nothing. But the layout is XLA's to choose, and it puts dimensions of 1 outermost:

    [1, chunks, layers = 1, ...]  ->  [chunks, 1, ...], stored as if it were [1, chunks, ...]

The same bytes, but not what a loop over ticks takes: with several stages of one layer on a rank, all weights,
gradients and slots were copied. So the layout is told: the order of the dimensions.
"""

import jax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array

from jaxpipe.pipeline.contract import Tree


def without_devices(tree: Tree) -> Tree:
    """The device's own part of each leaf, ``[1, ...]``."""
    return jax.tree.map(lambda leaf: _in_order(leaf[0]), tree)


def with_devices(tree: Tree) -> Tree:
    """The inverse: each leaf as ``[1, ...]``."""
    return jax.tree.map(lambda leaf: _in_order(leaf[None]), tree)


def _in_order(array: Array) -> Array:
    return with_layout_constraint(array, Layout(tuple(range(array.ndim))))
