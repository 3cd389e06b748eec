"""What a rank holds while the ticks run: a fixed number of slots, whatever the number of microbatches."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpipe.lowering.table import TickTable
from jaxpipe.pipeline.contract import Tree
from jaxpipe.pipeline.split_vjp import SplitLayer


class Buffers(NamedTuple):
    """The carry of the scan over ticks. The inbox has one slot more than the table counts, its trash.

    inbox: activations and gradients that wait for their action, ``[slots, tokens, hidden]``.
    message: what the last action left, for a neighbour or an end of the pipe, ``[tokens, hidden]``.
    travelling: with ``transfer_ticks=2`` the message of the tick before, else None.
    residuals: what F left for B, leaves ``[slots, layers, ...]``.
    weight_inputs: what B left for W, leaves ``[slots, layers, ...]``.
    gradients: fp32 accumulators of all that this rank holds, ``layers`` as ``[chunks, layers, ...]``.
    loss: the loss summed over the microbatches so far, the same on all ranks.
    """

    inbox: Array
    message: Array
    travelling: Array | None
    residuals: list[Array]
    weight_inputs: Tree
    gradients: Tree
    loss: Float[Array, ""]


def allocate(
    table: TickTable,
    *,
    message: jax.ShapeDtypeStruct,
    weights: Tree,
    split: SplitLayer | None,
    num_layers: int,
    fill: float,
) -> Buffers:
    """Buffers for a table; ``message`` is ``[tokens, hidden]``, ``split`` is None where no B follows.

    What is in a slot before something is written there is never read by an action that counts;
    tests set ``fill`` to NaN to prove it.
    """

    def slots(count: int, struct: jax.ShapeDtypeStruct, *leading: int) -> Array:
        value = fill if jnp.issubdtype(struct.dtype, jnp.floating) else 0
        return jnp.full((count, *leading, *struct.shape), value, struct.dtype)

    empty = jnp.full(message.shape, fill, message.dtype)
    return Buffers(
        inbox=slots(table.num_inbox_slots + 1, message),
        message=empty,
        travelling=empty if table.transfer_ticks == 2 else None,
        residuals=[slots(table.num_residual_slots, leaf, num_layers) for leaf in split.residuals]
        if split
        else [],
        weight_inputs=jax.tree.map(
            lambda leaf: slots(table.num_weight_slots, leaf, num_layers), split.weight_inputs if split else {}
        ),
        gradients=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), weights if split else {}),
        loss=jnp.zeros((), jnp.float32),
    )
