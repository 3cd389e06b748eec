"""Two pipes: a second copy of the layers, which exists only while a step runs.

A rank holds its stages of pipe 0. Where there is a pipe 1 (Chimera, DualPipe), the rank also works on the
stages that pipe 1 places there: their weights come from the ranks that hold them, in one permute at the
start of the step, and their gradients go back the same way at its end.

    rank                     0    1    2    3
    pipe 0, chunk 0          s0   s1   s2   s3      state, optimizer and checkpoints know this one
    pipe 1, chunk 0          s3   s2   s1   s0      copies: chunk ``num_chunks`` of the ticks

So within the ticks a rank has ``pipes * chunks`` chunks, pipe after pipe, and pipe 1 costs a copy of the
layers in the compute dtype and one of their accumulators in fp32. (Where fp32 computes, the master weights
serve as they are with one pipe; with two, the chunks of both are copies.)

What the pipes have added up is added here, pipe 0's first: how they took turns leaves no trace.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpipe.pipeline.buffers import Buffers, EndSums
from jaxpipe.pipeline.contract import Tree
from jaxpipe.schedules import Placement


def copy_to_pipes(layers: Tree, placement: Placement) -> Tree:
    """A rank's layers, leaves ``[chunks, layers, ...]``, and after them those of pipe 1 if there is one."""
    if placement.num_pipes == 1:
        return layers
    copy = jax.lax.ppermute(layers, "pp", _pairs(placement))
    return jax.tree.map(lambda own, other: jnp.concatenate([own, other]), layers, copy)


def add_pipes(buffers: Buffers, placement: Placement, *, tied: bool) -> tuple[Tree, Float[Array, ""]]:
    """The gradients of all that a rank holds, and the summed loss; ``tied``: head and embedding are one."""
    total = add_ends(buffers.ends)
    assert total.embedding is not None, "the ticks ran without a backward"
    assert total.head is not None, "the ticks ran without a backward"
    layers = _bring_back(buffers.layer_gradients, placement)
    gradients = {"layers": layers, "final": total.final, "embedding": total.embedding}
    if tied:
        gradients["embedding"] = total.embedding + total.head
    else:
        gradients["head"] = total.head
    return gradients, total.loss


def add_ends(ends: EndSums) -> EndSums:
    """What the ends of all pipes have added up, in their order."""
    return jax.tree.map(lambda leaf: functools.reduce(jnp.add, list(leaf)), ends)


def _bring_back(gradients: Tree, placement: Placement) -> Tree:
    """The inverse of ``copy_to_pipes``; a stage's gradients of both pipes are added."""
    if placement.num_pipes == 1:
        return gradients
    num_chunks = placement.num_chunks
    back = [(to, source) for source, to in _pairs(placement)]
    returned = jax.lax.ppermute(jax.tree.map(lambda leaf: leaf[num_chunks:], gradients), "pp", back)
    return jax.tree.map(lambda leaf, other: leaf[:num_chunks] + other, gradients, returned)


def _pairs(placement: Placement) -> list[tuple[int, int]]:
    """Of each rank: itself, and the rank that has the same stages in pipe 1."""
    first, second = placement.stage_ranks
    assert placement.stage_chunks[0] == placement.stage_chunks[1], "a stage is another chunk in pipe 1"
    pairs = dict(zip(first, second, strict=True))
    assert second == tuple(pairs[rank] for rank in first), "stages of one rank are on several in pipe 1"
    return sorted(pairs.items())
