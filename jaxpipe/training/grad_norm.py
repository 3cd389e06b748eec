"""The global norm of gradients in stage layout, to the bit the same wherever a layer lies.

A sum of floats depends on the order of its terms, and in stage layout that order depends on chunks and
placement. So the sum of squares of each leaf of each layer is formed alone, by the device that holds it, and
these sums are then added in model order:

    layer 0: leaf 0, leaf 1, ...    layer 1: ...    vocabulary: rank 0's rows, rank 1's, ...    final

Only this vector of a few hundred scalars travels. Padding has no place in it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from jaxpipe.pipeline.contract import Tree
from jaxpipe.pipeline.layout import VOCABULARY_GROUPS, Layout, stage_specs
from jaxpipe.pipeline.manual_axes import varying


def make_global_norm(layout: Layout, mesh: Mesh) -> Callable[[Tree], Float[Array, ""]]:
    """The norm over all gradients, in fp32, of trees in the stage layout that ``layout`` says."""
    places = _places(layout)

    def local(gradients: Tree) -> Float[Array, ""]:
        rank = jax.lax.axis_index("pp")
        # what is fused with the sums must not depend on the program around them
        gradients = jax.lax.optimization_barrier(gradients)
        layers = jnp.stack([_of_each_layer(leaf[0]) for leaf in jax.tree.leaves(gradients["layers"])], axis=1)
        rows = jnp.stack(
            [_sum_of_squares(gradients[name]) for name in VOCABULARY_GROUPS if name in gradients]
        )
        final = sum(map(_sum_of_squares, jax.tree.leaves(gradients["final"])), jnp.zeros(()))
        own = [
            _scatter(layers, jnp.asarray(places)[rank], layout.num_layers),
            _scatter(rows[None], rank[None], layout.placement.num_ranks),
            jnp.where(rank == 0, final, 0)[None],
        ]
        # each place has one term that is not 0, so this sum has no order
        all_sums = jax.lax.psum(jnp.concatenate([part.reshape(-1) for part in own]), "pp")
        return jnp.sqrt(jnp.sum(jax.lax.optimization_barrier(all_sums)))

    def global_norm(gradients: Tree) -> Float[Array, ""]:
        specs = stage_specs(gradients)
        return jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec())(gradients)

    return global_norm


def _places(layout: Layout) -> Int[np.ndarray, "ranks chunks*layers"]:
    """The number in the model of each layer that a rank holds; of padding, the number after the last."""
    placement = layout.placement
    places = np.full((placement.num_ranks, placement.num_chunks, layout.max_layers), layout.num_layers)
    places[tuple(layout.positions().T)] = np.arange(layout.num_layers)
    return places.reshape(placement.num_ranks, -1)


def _of_each_layer(leaf: Float[Array, "chunks layers *rest"]) -> Float[Array, " chunks*layers"]:
    """The sum of squares of each layer, one after the other: all are then formed alike."""
    return jax.lax.map(_sum_of_squares, leaf.reshape(-1, *leaf.shape[2:]))


def _sum_of_squares(array: Array) -> Float[Array, ""]:
    return jnp.sum(jnp.square(array.astype(jnp.float32)))


def _scatter(values: Float[Array, "n k"], places: Int[Array, " n"], size: int) -> Float[Array, "size k"]:
    """``values`` at their places among ``size``, 0 elsewhere."""
    return varying(jnp.zeros((size, values.shape[1])), ("pp",)).at[places].set(values, mode="drop")
