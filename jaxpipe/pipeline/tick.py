"""One tick: both ends of each pipe, one action at most, messages to both neighbours.

The steps and their order are those of the tick table's docstring (lowering/table.py). There are no branches:
an action is a loop with zero trips where there is nothing to do. A message is whatever the action left in one
register; it goes both ways, and the receiver's table says whether to keep it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxpipe.lowering.segments import Hops, TickUse
from jaxpipe.lowering.table import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    RECOMPUTE,
    WEIGHT,
    EndColumns,
    RankColumns,
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


def run_plain_tick(*arguments: Any, **named: Any) -> tuple[Buffers, None]:
    """``run_tick``, for a scan."""
    return run_tick(*arguments, **named), None


def run_tick(
    program: Program,
    buffers: Buffers,
    *,
    loops: StageLoops,
    ends: Ends,
    use: TickUse,
    rank: RankColumns,
    both_ends: EndColumns,
    mark: Mark = unmarked,
) -> Buffers:
    """The buffers after a tick; ``rank`` and ``both_ends`` are its row of the table, as scalars.

    use: what the row may use. There is no code for other kinds, hops and ends; an end's serves all pipes.
    """
    buffers, rank = mark(_meet_ends(program, ends, buffers, both_ends, use), rank)
    buffers, rank = mark(_act(program, loops, buffers, rank, use), rank)
    return mark(_exchange(program, buffers, rank, use), rank)[0]


def _meet_ends(
    program: Program, ends: Ends, buffers: Buffers, row: EndColumns[Array], use: TickUse
) -> Buffers:
    """The part of a tick that all ranks do together; every trip count is the same on all of them."""
    if use.unembed:
        with jax.named_scope("unembed"):
            buffers = run_unembed(ends, buffers, row)
    if use.head:
        with jax.named_scope("head"):
            buffers = (run_head if program.has_backward else run_head_loss)(ends, buffers, row)
    if use.embed:
        with jax.named_scope("embed"):
            buffers = run_embed(ends, buffers, row)
    return buffers


def _act(
    program: Program, loops: StageLoops, buffers: Buffers, row: RankColumns[Array], use: TickUse
) -> Buffers:
    """At most one action; its result, or whatever the trash slot held, is the new message."""
    chunk = row.pipe * program.layout.placement.num_chunks + row.chunk
    work = Work(chunk, row.microbatch, row.residual_slot, row.input_slot, row.weight_slot, row.recompute_slot)
    message = jax.lax.dynamic_index_in_dim(buffers.inbox, row.inbox_read, keepdims=False).reshape(loops.shape)
    residuals, linear_inputs = buffers.residuals, buffers.linear_inputs
    weight_inputs, layers = buffers.weight_inputs, dict(buffers.layer_gradients)
    layer_inputs = buffers.layer_inputs
    if FORWARD in use.kinds:
        with jax.named_scope("F"):
            if layer_inputs is not None:
                message, layer_inputs = run_forward_for_recompute(
                    loops, row.kind == FORWARD, work, message, layer_inputs
                )
            else:
                message, residuals, linear_inputs = run_forward(
                    loops, row.kind == FORWARD, work, message, residuals, linear_inputs
                )
    if RECOMPUTE in use.kinds:
        assert layer_inputs is not None
        with jax.named_scope("R"):
            residuals, linear_inputs = run_recompute(
                loops, row.kind == RECOMPUTE, work, layer_inputs, residuals, linear_inputs
            )
    if BACKWARD in use.kinds:
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
    if WEIGHT in use.kinds:
        with jax.named_scope("W"):
            layers["kernels"] = run_weight(
                loops, row.kind == WEIGHT, work, linear_inputs, weight_inputs, layers["kernels"]
            )
    if BACKWARD_WEIGHT in use.kinds:
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


def _exchange(program: Program, buffers: Buffers, row: RankColumns[Array], use: TickUse) -> Buffers:
    """The message goes one hop both ways; the table says which inbox slot keeps what arrives.

    Where no rank sends both ways, and none hears both neighbours, both hops are one.
    """
    inbox = buffers.inbox
    leaving = buffers.message if program.table.transfer_ticks == 1 else buffers.travelling

    def keep(inbox: Array, arrived: Array, slot: Array) -> Array:
        if buffers.travelling is not None:
            # Never so, but XLA does not know: now the write depends on what this tick's action has read.
            # Without that it may come before, and XLA copies the whole inbox twice a tick.
            arrived = jnp.where(slot < 0, buffers.message, arrived)
        return jax.lax.dynamic_update_index_in_dim(inbox, arrived, slot, axis=0)

    hops = [("up", use.up, row.from_below), ("down", use.down, row.from_above)]
    if use.up and use.down and _are_apart(use.up, use.down):
        # of the two slots one is the trash, whose number is the highest
        hops = [("up and down", use.up + use.down, jnp.minimum(row.from_below, row.from_above))]
    for name, pairs, slots in hops:
        if pairs:
            with jax.named_scope(name):
                inbox = keep(inbox, jax.lax.ppermute(leaving, "pp", pairs), slots)
    if use.to_self:
        inbox = keep(inbox, buffers.message, row.from_self)
    travelling = None if buffers.travelling is None else buffers.message
    return buffers._replace(inbox=inbox, travelling=travelling)


def _are_apart(up: Hops, down: Hops) -> bool:
    """Whether no rank is twice among the senders, or the receivers."""
    return all({pair[end] for pair in up}.isdisjoint({pair[end] for pair in down}) for end in (0, 1))
