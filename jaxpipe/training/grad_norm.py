"""The global norm of gradients in stage layout, to the bit the same wherever a layer lies.

A sum of floats depends on the order of its terms, and in stage layout that order depends on chunks and
placement. So the sum of squares of each leaf of each layer is formed alone, by the devices that hold it, and
these sums are then added in model order:

    layer 0: leaf 0, leaf 1, ...    layer 1: ...    vocabulary: shard 0's rows, shard 1's, ...    final: ...

Only this vector of a few hundred scalars travels. Padding has no place in it. What several devices hold
together (tp, ZeRO) is added over them, what they hold alike is counted once. The vector comes with the norm:
where that is not finite, it shows in which leaves.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from jaxpipe.pipeline.contract import VOCABULARY_GROUPS, Tree
from jaxpipe.pipeline.layout import Layout
from jaxpipe.pipeline.manual_axes import varying, varying_axes
from jaxpipe.pipeline.sharding import stage_specs


class GradientNorm(NamedTuple):
    """The norm over all gradients, in fp32, and the sums of squares that it is made of.

    squares: of each leaf of each layer, and of each shard of the vocabulary; ``square_names`` says which.
    """

    norm: Float[Array, ""]
    squares: Float[Array, " sums"]


def make_global_norm(layout: Layout, mesh: Mesh) -> Callable[[Tree], GradientNorm]:
    """The norm of trees in the stage layout that ``layout`` says; every device has it and all its sums."""
    places = _places(layout)
    num_devices = layout.placement.num_ranks * layout.sharding.tp

    def local(gradients: Tree) -> GradientNorm:
        rank = jax.lax.axis_index("pp")
        shard = jax.lax.axis_index(("pp", "tp")) if layout.sharding.tp > 1 else rank
        # what is fused with the sums must not depend on the program around them; leaf by leaf, since a
        # barrier marks all that passes through it as varying over the axes of each
        gradients = jax.tree.map(jax.lax.optimization_barrier, gradients)
        sums = _of_each_layer(jax.tree.leaves(gradients["layers"]))
        layers = jnp.stack([_over_shards(of_leaf, keep=("pp",)) for of_leaf in sums], axis=1)
        rows = [
            _over_shards(_sum_of_squares(gradients[name]), keep=("pp", "tp"))
            for name in VOCABULARY_GROUPS
            if name in gradients
        ]
        final = jnp.asarray(list(map(_sum_of_squares, jax.tree.leaves(gradients["final"]))))
        own = [
            _once(_scatter(layers, jnp.asarray(places)[rank], layout.num_layers)),
            _scatter(jnp.stack(rows)[None], shard[None], num_devices),
            _once(jnp.where(rank == 0, final, 0)),
        ]
        # each place has one term that is not 0, so this sum has no order
        all_sums = jax.lax.psum(_joined(own), "pp" if layout.sharding.tp == 1 else ("pp", "tp"))
        return GradientNorm(jnp.sqrt(jnp.sum(jax.lax.optimization_barrier(all_sums))), all_sums)

    def _once(values: Array) -> Array:
        """What the devices of a rank hold alike, on the first of them."""
        return values if layout.sharding.tp == 1 else jnp.where(jax.lax.axis_index("tp") == 0, values, 0)

    def global_norm(gradients: Tree) -> GradientNorm:
        specs = stage_specs(gradients, layout.sharding)
        return jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec())(gradients)

    return global_norm


def square_names(params: Tree, layout: Layout) -> tuple[str, ...]:
    """What each of the sums of ``make_global_norm`` is of, with the names of ``named_params``.

    The shards of a vocabulary go by its name, so that one comes several times.
    """
    num_devices = layout.placement.num_ranks * layout.sharding.tp
    leaves = _names(params["layers"])
    layers = [f"layers.{index}.{leaf}" for index in range(layout.num_layers) for leaf in leaves]
    rows = [name for name in VOCABULARY_GROUPS if name in params] * num_devices
    return (*layers, *rows, *_names({"final": params["final"]}))


def norm_as_it_lies(gradients: Tree) -> GradientNorm:
    """optax's norm, added up in whatever order the layout has; without the sums that it is made of."""
    return GradientNorm(optax.tree.norm(gradients), jnp.zeros(0))


def _names(tree: Tree) -> list[str]:
    """The path of each leaf, in the order of ``jax.tree.leaves``."""
    return [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _places(layout: Layout) -> Int[np.ndarray, "ranks chunks*layers"]:
    """The number in the model of each layer that a rank holds; of padding, the number after the last."""
    placement = layout.placement
    places = np.full((placement.num_ranks, placement.num_chunks, layout.max_layers), layout.num_layers)
    places[tuple(layout.positions().T)] = np.arange(layout.num_layers)
    return places.reshape(placement.num_ranks, -1)


def _over_shards(sums: Float[Array, "..."], *, keep: tuple[str, ...]) -> Float[Array, "..."]:
    """Added up over the mesh axes along which they differ, but for those to ``keep``."""
    axes = tuple(axis for axis in ("dp", "tp") if axis in varying_axes(sums) and axis not in keep)
    return jax.lax.psum(sums, axes) if axes else sums


def _of_each_layer(
    leaves: list[Float[Array, "1 chunks layers *rest"]],
) -> list[Float[Array, " chunks*layers"]]:
    """The sums of squares of each layer, one after the other: all are then formed alike.

    One loop for all leaves, since each costs time to compile. A layer is cut out of a leaf as it lies: of one
    that is reshaped XLA makes a copy.
    """
    _, num_chunks, num_layers = leaves[0].shape[:3]

    def sums_of_squares(place: Int[Array, ""]) -> list[Float[Array, ""]]:
        chunk, layer = place // num_layers, place % num_layers
        return [
            _sum_of_squares(
                jax.lax.dynamic_slice(
                    leaf, (0, chunk, layer, *np.zeros(leaf.ndim - 3, np.int32)), (1, 1, 1, *leaf.shape[3:])
                )
            )
            for leaf in leaves
        ]

    return jax.lax.map(sums_of_squares, jnp.arange(num_chunks * num_layers))


def _sum_of_squares(array: Array) -> Float[Array, ""]:
    return jnp.sum(jnp.square(array.astype(jnp.float32)))


def _scatter(values: Float[Array, "n k"], places: Int[Array, " n"], size: int) -> Float[Array, "size k"]:
    """``values`` at their places among ``size``, 0 elsewhere."""
    axes = tuple(varying_axes(values) | varying_axes(places))
    return varying(jnp.zeros((size, values.shape[1])), axes).at[places].set(values, mode="drop")


def _joined(parts: list[Array]) -> Float[Array, " places"]:
    axes = tuple(frozenset().union(*map(varying_axes, parts)))
    return jnp.concatenate([varying(part.reshape(-1), axes) for part in parts])
