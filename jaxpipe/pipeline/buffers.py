"""What a rank holds while the ticks run: a fixed number of slots, whatever the number of microbatches."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpipe.lowering.table import TickTable
from jaxpipe.pipeline.contract import Tree
from jaxpipe.pipeline.split_vjp import SplitLayer


class EndSums(NamedTuple):
    """What both ends of each pipe have added up so far, on this rank; fp32, leaves ``[pipes, ...]``.

    Each pipe has its own, and head and embedding theirs, also where they are tied: a sum whose terms come in
    an order that depends on the schedule would have other bits. They are added once, after the ticks
    (pipes.py). The price: with two pipes, or tied weights, an accumulator more of the size of this rank's
    rows of the vocabulary for each; with both, three more.

    embedding, head: ``[pipes, rows, hidden]``; from ZeRO 2 on shards of ``hidden``.
    final: like the parameters of ``final``, the same on all ranks. These three are None without backward.
    loss: summed over tokens, the same on all ranks.
    """

    embedding: Array | None
    head: Array | None
    final: Tree
    loss: Float[Array, " pipes"]


class Buffers(NamedTuple):
    """The carry of the scan over ticks. The inbox has one slot more than the table counts, its trash.

    With sequence parallelism ``tokens`` are those of this device's share of the sequence.

    inbox: activations and gradients that wait for their action, ``[slots, tokens, hidden]``.
    message: what the last action left, for a neighbour or an end of the pipe, ``[tokens, hidden]``.
    travelling: with ``transfer_ticks=2`` the message of the tick before, else None.
    residuals: what F left for B, leaves ``[slots, layers, ...]``.
    linear_inputs: what F left for W, leaves ``[slots, layers, ...]``; there are none with remat.
    layer_inputs: what F left for R, ``[slots, layers, tokens, hidden]``, where there is R, else None; then it
        is R that leaves residuals and linear inputs.
    weight_inputs: what B left for W, leaves ``[slots, layers, ...]``.
    layer_gradients: fp32 accumulators, leaves ``[pipes * chunks, layers, ...]``; from ZeRO 2 on shards.
    ends: what both ends of each pipe have added up.
    """

    inbox: Array
    message: Array
    travelling: Array | None
    residuals: list[Array]
    linear_inputs: Tree
    weight_inputs: Tree
    layer_inputs: Array | None
    layer_gradients: Tree
    ends: EndSums


Slots = dict[str, Tree]
"""Some fields of ``Buffers``, by name."""

SLOTS = ("inbox", "residuals", "linear_inputs", "weight_inputs", "layer_inputs")
"""Those whose values at the start of a step do not matter: nothing in them is read before it is written."""

KEPT = (*SLOTS, "layer_gradients")
"""Those that may stay allocated from step to step: the accumulators are filled with zeros where they lie."""


def allocate(
    table: TickTable,
    *,
    message: jax.ShapeDtypeStruct,
    accumulated: Tree,
    split: SplitLayer | None,
    num_layers: int,
    fill: float,
) -> Buffers:
    """Buffers for a table; ``message`` is ``[tokens, hidden]``, ``split`` is None where no B follows.

    ``accumulated`` is shaped like what is added up: layers of all pipes, ``final`` and the vocabulary.

    What is in a slot before something is written there is never read by an action that counts;
    tests set ``fill`` to NaN to prove it.
    """

    def slots(count: int, struct: jax.ShapeDtypeStruct, *leading: int) -> Array:
        return jnp.full((count, *leading, *struct.shape), fill_of(struct, fill), struct.dtype)

    empty = jnp.full(message.shape, fill, message.dtype)
    return Buffers(
        inbox=slots(table.num_inbox_slots + 1, message),
        message=empty,
        travelling=empty if table.transfer_ticks == 2 else None,
        residuals=[slots(table.num_residual_slots, leaf, num_layers) for leaf in split.residuals]
        if split
        else [],
        linear_inputs=jax.tree.map(
            lambda leaf: slots(table.num_input_slots, leaf, num_layers), split.linear_inputs if split else {}
        ),
        weight_inputs=jax.tree.map(
            lambda leaf: slots(table.num_weight_slots, leaf, num_layers), split.weight_inputs if split else {}
        ),
        layer_inputs=slots(table.num_recompute_slots, message, num_layers) if table.recomputes else None,
        layer_gradients=_zeros(accumulated["layers"]) if split else {},
        ends=end_sums(accumulated, table.placement.num_pipes, has_backward=split is not None),
    )


def fill_of(struct: jax.ShapeDtypeStruct, fill: float) -> float:
    """What an array of this type can hold of ``fill``."""
    return fill if jnp.issubdtype(struct.dtype, jnp.floating) else 0


def end_sums(accumulated: Tree, num_pipes: int, *, has_backward: bool) -> EndSums:
    """Nothing added up yet; a head that is tied is of the embedding's shape."""
    loss = jnp.zeros(num_pipes, jnp.float32)
    if not has_backward:
        return EndSums(None, None, None, loss)
    head = accumulated.get("head", accumulated["embedding"])
    embedding, head, final = _zeros((accumulated["embedding"], head, accumulated["final"]), num_pipes)
    return EndSums(embedding, head, final, loss)


def _zeros(tree: Tree, *leading: int) -> Tree:
    return jax.tree.map(lambda leaf: jnp.zeros((*leading, *leaf.shape), jnp.float32), tree)
