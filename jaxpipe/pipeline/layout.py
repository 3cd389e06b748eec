"""Where each layer lies: canonical ``[num_layers, ...]`` against what the ranks hold.

    canonical   layers in model order; vocabulary as it is         checkpoints, export, hashes
    stage       [ranks, chunks, layers, ...], the longest stage gives the size;
                vocabulary padded to a multiple of ranks x tp        the training state, sharded (sharding.py)

Layers of padding are zero, get no gradient, and cost no compute. With two pipes the layers lie where pipe 0
has them; the other pipe's copy exists only within a step (pipes.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.pipeline.contract import VOCABULARY_GROUPS, Tree
from jaxpipe.pipeline.sharding import UNSHARDED, Sharding
from jaxpipe.pipeline.vocabulary import padded_vocabulary
from jaxpipe.schedules import Placement


@dataclass(frozen=True)
class Layout:
    """``layers_per_stage[stage]`` consecutive layers lie on the rank and chunk that pipe 0 has for them.

    sharding: how the devices of a rank, and the copies of the pipeline, share what lies there.
    """

    placement: Placement
    layers_per_stage: tuple[int, ...]
    vocab_size: int
    sharding: Sharding = UNSHARDED

    @property
    def num_layers(self) -> int:
        return sum(self.layers_per_stage)

    @property
    def max_layers(self) -> int:
        """Layers of the longest stage: what every chunk makes room for."""
        return max(self.layers_per_stage)

    @property
    def is_even(self) -> bool:
        return len(set(self.layers_per_stage)) == 1

    @property
    def is_in_model_order(self) -> bool:
        """Whether rank after rank, chunk and index give the layers of the model, without padding."""
        placement = self.placement
        ranks = tuple(range(placement.num_ranks))
        return self.is_even and placement.num_chunks == 1 and placement.stage_ranks[0] == ranks

    @property
    def padded_vocab_size(self) -> int:
        return padded_vocabulary(self.vocab_size, self.placement.num_ranks * self.sharding.tp)

    def layers_of_chunk(self) -> np.ndarray:
        """How many layers each chunk has: int32 ``[ranks, pipes * chunks]``, one pipe after the other."""
        placement = self.placement
        counts = np.zeros((placement.num_ranks, placement.num_pipes, placement.num_chunks), np.int32)
        for pipe in range(placement.num_pipes):
            for stage, count in enumerate(self.layers_per_stage):
                counts[placement.rank(stage, pipe), pipe, placement.chunk(stage, pipe)] = count
        return counts.reshape(placement.num_ranks, -1)

    def positions(self) -> np.ndarray:
        """Where each layer of the model lies: int ``[num_layers, 3]``, rank, chunk, index in the chunk."""
        return np.array(
            [
                (self.placement.rank(stage), self.placement.chunk(stage), index)
                for stage, count in enumerate(self.layers_per_stage)
                for index in range(count)
            ]
        )


Convert = Callable[[jax.Array, Layout], jax.Array]
"""One leaf from one layout to the other."""


def to_stage_layout(params: Tree, layout: Layout) -> Tree:
    """Canonical parameters, or anything shaped like them, as the ranks hold them."""
    return _by_group(params, layout, layers=place_layers, vocabulary=pad_vocabulary)


def to_canonical_layout(params: Tree, layout: Layout) -> Tree:
    """The inverse of ``to_stage_layout``."""
    return _by_group(params, layout, layers=pick_layers, vocabulary=cut_vocabulary)


def place_layers(leaf: jax.Array, layout: Layout) -> jax.Array:
    """``[num_layers, ...]`` as ``[ranks, chunks, layers, ...]``."""
    shape = (layout.placement.num_ranks, layout.placement.num_chunks, layout.max_layers, *leaf.shape[1:])
    if layout.is_in_model_order:
        return leaf.reshape(shape)
    rank, chunk, index = layout.positions().T
    return jnp.zeros(shape, leaf.dtype).at[rank, chunk, index].set(leaf)


def pick_layers(leaf: jax.Array, layout: Layout) -> jax.Array:
    """The inverse of ``place_layers``."""
    if layout.is_in_model_order:
        return leaf.reshape(layout.num_layers, *leaf.shape[3:])
    rank, chunk, index = layout.positions().T
    return leaf[rank, chunk, index]


def pad_vocabulary(leaf: jax.Array, layout: Layout) -> jax.Array:
    """``[vocabulary, hidden]`` with as many rows as the shards have room for."""
    return jnp.pad(leaf, ((0, layout.padded_vocab_size - layout.vocab_size), (0, 0)))


def cut_vocabulary(leaf: jax.Array, layout: Layout) -> jax.Array:
    """The inverse of ``pad_vocabulary``."""
    return leaf[: layout.vocab_size]


def _by_group(params: Tree, layout: Layout, *, layers: Convert, vocabulary: Convert) -> Tree:
    changed = dict(params)
    changed["layers"] = jax.tree.map(lambda leaf: layers(leaf, layout), params["layers"])
    for group in VOCABULARY_GROUPS:
        if group in params:
            changed[group] = jax.tree.map(lambda leaf: vocabulary(leaf, layout), params[group])
    return changed
