"""One tick: both ends of each pipe, one action at most, messages to both neighbours.

The steps and their order are those of the tick table's docstring (lowering/table.py). There are no branches:
an action is a loop with zero trips where there is nothing to do. A message is whatever the action left in one
register; it goes both ways, and the receiver's table says whether to keep it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxpipe.lowering.table import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    RECOMPUTE,
    WEIGHT,
    EndColumns,
    RankColumns,
    TickTable,
)
from jaxpipe.pipeline.buffers import Buffers
from jaxpipe.pipeline.ends import Ends, run_embed, run_head, run_head_loss, run_unembed
from jaxpipe.pipeline.loops import (
    StageLoops,
    Work,
    run_backward,
    run_backward_weight,
    run_forward,
    run_forward_for_recompute,
    run_recompute,
    run_weight,
)
from jaxpipe.pipeline.program import Program

Mark = Callable[[Buffers, RankColumns], tuple[Buffers, RankColumns]]
"""Stands behind a part of a tick: gets, and gives back, what that has made and the next part reads."""


def unmarked(buffers: Buffers, rank: RankColumns) -> tuple[Buffers, RankColumns]:
    """No mark; there are others in tick_clock.py."""
    return buffers, rank


def run_tick(
    program: Program,
    buffers: Buffers,
    *,
    loops: StageLoops,
    ends: Ends,
    rank: RankColumns,
    both_ends: EndColumns,
    mark: Mark = unmarked,
) -> Buffers:
    """The buffers after a tick; ``rank`` and ``both_ends`` are its row of the table, as scalars."""
    buffers, rank = mark(_meet_ends(program, ends, buffers, both_ends), rank)
    buffers, rank = mark(_act(program, loops, buffers, rank), rank)
    return mark(_exchange(program, buffers, rank), rank)[0]


def _meet_ends(program: Program, ends: Ends, buffers: Buffers, row: EndColumns[Array]) -> Buffers:
    """The part of a tick that all ranks do together; every trip count is the same on all of them."""
    placement = program.layout.placement
    for pipe in range(placement.num_pipes):
        first, last = placement.rank(0, pipe), placement.rank(placement.num_stages - 1, pipe)
        if program.has_backward:
            with jax.named_scope("unembed"):
                buffers = run_unembed(ends, buffers, row.unembed[pipe], pipe=pipe, rank=first)
            with jax.named_scope("head"):
                buffers = run_head(ends, buffers, row.head[pipe], row.head_slot[pipe], pipe=pipe, rank=last)
        else:
            with jax.named_scope("head"):
                buffers = run_head_loss(ends, buffers, row.head[pipe], pipe=pipe, rank=last)
        with jax.named_scope("embed"):
            buffers = run_embed(ends, buffers, row.embed[pipe], row.embed_slot[pipe], rank=first)
    return buffers


def _act(program: Program, loops: StageLoops, buffers: Buffers, row: RankColumns[Array]) -> Buffers:
    """At most one action; its result, or whatever the trash slot held, is the new message."""
    chunk = row.pipe * program.layout.placement.num_chunks + row.chunk
    work = Work(chunk, row.microbatch, row.residual_slot, row.input_slot, row.weight_slot, row.recompute_slot)
    message = jax.lax.dynamic_index_in_dim(buffers.inbox, row.inbox_read, keepdims=False).reshape(loops.shape)
    residuals, linear_inputs = buffers.residuals, buffers.linear_inputs
    weight_inputs, layers = buffers.weight_inputs, dict(buffers.layer_gradients)
    layer_inputs = buffers.layer_inputs
    if FORWARD in program.kinds:
        acts = row.kind == FORWARD
        with jax.named_scope("F"):
            if layer_inputs is None:
                message, residuals, linear_inputs = run_forward(
                    loops, acts, work, message, residuals, linear_inputs
                )
            else:
                message, layer_inputs = run_forward_for_recompute(loops, acts, work, message, layer_inputs)
    if RECOMPUTE in program.kinds:
        assert layer_inputs is not None
        with jax.named_scope("R"):
            residuals, linear_inputs = run_recompute(
                loops, row.kind == RECOMPUTE, work, layer_inputs, residuals, linear_inputs
            )
    if BACKWARD in program.kinds:
        with jax.named_scope("B"):
            message, weight_inputs, layers["small"] = run_backward(
                loops,
                row.kind == BACKWARD,
                work,
                message,
                residuals,
                linear_inputs,
                weight_inputs,
                layers["small"],
            )
    if WEIGHT in program.kinds:
        with jax.named_scope("W"):
            layers["kernels"] = run_weight(
                loops, row.kind == WEIGHT, work, linear_inputs, weight_inputs, layers["kernels"]
            )
    if BACKWARD_WEIGHT in program.kinds:
        with jax.named_scope("BW"):
            message, layers = run_backward_weight(
                loops, row.kind == BACKWARD_WEIGHT, work, message, residuals, linear_inputs, layers
            )
    return buffers._replace(
        message=message.reshape(buffers.message.shape),
        residuals=residuals,
        linear_inputs=linear_inputs,
        weight_inputs=weight_inputs,
        layer_inputs=layer_inputs,
        layer_gradients=layers,
    )


def _exchange(program: Program, buffers: Buffers, row: RankColumns[Array]) -> Buffers:
    """The message goes one hop both ways; the table says which inbox slot keeps what arrives."""
    table, inbox = program.table, buffers.inbox
    leaving = buffers.message if table.transfer_ticks == 1 else buffers.travelling
    num_ranks = table.placement.num_ranks

    def keep(inbox: Array, arrived: Array, slot: Array) -> Array:
        if buffers.travelling is not None:
            # Never so, but XLA does not know: now the write depends on what this tick's action has read.
            # Without that it may come before, and XLA copies the whole inbox twice a tick.
            arrived = jnp.where(slot < 0, buffers.message, arrived)
        return jax.lax.dynamic_update_index_in_dim(inbox, arrived, slot, axis=0)

    for slots, hop, column in (
        (row.from_below, 1, table.ranks.from_below),
        (row.from_above, -1, table.ranks.from_above),
    ):
        pairs = [
            ((rank - hop) % num_ranks, rank) for rank in range(num_ranks) if _is_used(table, column, rank)
        ]
        if pairs:
            with jax.named_scope("up" if hop == 1 else "down"):
                inbox = keep(inbox, jax.lax.ppermute(leaving, "pp", pairs), slots)
    if any(_is_used(table, table.ranks.from_self, rank) for rank in range(num_ranks)):
        inbox = keep(inbox, buffers.message, row.from_self)
    travelling = None if buffers.travelling is None else buffers.message
    return buffers._replace(inbox=inbox, travelling=travelling)


def _is_used(table: TickTable, column: np.ndarray, rank: int) -> bool:
    return bool(np.any(column[:, rank] != table.num_inbox_slots))
