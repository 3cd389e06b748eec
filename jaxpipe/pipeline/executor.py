"""One SPMD program for every schedule: a scan over the rows of a tick table.

Each device of the mesh runs the same program; its rank's columns of the table say what it does. A tick
(lowering/table.py) is: ends of the pipe, one action at most, messages to both neighbours. The action is
a loop with zero trips where there is nothing to do (loops.py), so a tick has no branches. A message is
whatever the action left in one register, and the receiver's table says whether to keep it.

Nothing here is differentiated: the backward pass is in the table, and ``jax.vjp`` is taken of one
layer at a time (split_vjp.py) and of ``final`` (ends.py).

    mesh axes   dp   the batch; gradients are reduced once, after the scan
                pp   the ranks, and the vocabulary
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int32

from jaxpipe.lowering.table import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    WEIGHT,
    EndColumns,
    RankColumns,
    TickTable,
)
from jaxpipe.pipeline.buffers import Buffers, allocate
from jaxpipe.pipeline.contract import Batch, LossAndGradients, StageContract, Tree
from jaxpipe.pipeline.ends import Ends, run_embed, run_head, run_head_loss, run_unembed
from jaxpipe.pipeline.layout import VOCABULARY_GROUPS, Layout, stage_specs
from jaxpipe.pipeline.loops import (
    StageLoops,
    Work,
    run_backward,
    run_backward_weight,
    run_forward,
    run_weight,
)
from jaxpipe.pipeline.manual_axes import varying
from jaxpipe.pipeline.split_vjp import Remat, split_layer


class Settings(NamedTuple):
    """How the program runs, besides the schedule.

    compute_dtype: of weights and messages inside the step; accumulators are fp32 whatever it is.
    head_tokens: the head runs over this many tokens at a time, or fewer: it bounds the logits.
    fill: what buffers hold before anything is written to them; tests fill them with NaN.
    """

    remat: Remat = "full"
    compute_dtype: jnp.dtype = jnp.float32
    head_tokens: int = 4096
    fill: float = 0.0


class Program(NamedTuple):
    """What is settled before tracing: a model's two functions, a schedule, and where things lie."""

    contract: StageContract
    table: TickTable
    layout: Layout
    mesh: Mesh
    settings: Settings = Settings()

    @property
    def kinds(self) -> frozenset[int]:
        """The kinds of action that the table holds; the others cost nothing, not even compile time."""
        return frozenset(np.unique(self.table.ranks.kind).tolist())

    @property
    def has_backward(self) -> bool:
        return bool(self.kinds & {BACKWARD, BACKWARD_WEIGHT})


def make_loss_and_gradients(program: Program) -> Callable[[Tree, Batch, Tree], LossAndGradients]:
    """``(params, batch, constants) -> LossAndGradients``, to be jitted by the caller.

    params: in stage layout (layout.py), fp32; the gradients come back like them.
    batch: ``[microbatches, global batch / microbatches, sequence]``, split over ``dp``.
    """
    assert program.has_backward, f"the schedule {program.table.name} has no backward action"

    def local(params: Tree, batch: Batch, constants: Tree, columns: _Columns) -> LossAndGradients:
        num_tokens = _count_tokens(batch)
        scale = 1.0 / jnp.maximum(num_tokens, 1).astype(jnp.float32)
        buffers = _run_ticks(program, params, batch, constants, columns, scale)
        gradients = jax.tree.map(lambda gradient: jax.lax.psum(gradient, "dp"), buffers.gradients)
        gradients["final"] = jax.tree.map(_of_first_rank, gradients["final"])
        gradients["layers"] = jax.tree.map(lambda gradient: gradient[None], gradients["layers"])
        return LossAndGradients(_total(buffers.loss) * scale, num_tokens, gradients)

    return _over_mesh(program, local, lambda params: LossAndGradients(_SAME, _SAME, stage_specs(params)))


def make_loss(program: Program) -> Callable[[Tree, Batch, Tree], tuple[Float[Array, ""], Int32[Array, ""]]]:
    """``(params, batch, constants) -> (summed loss, valid tokens)`` of a forward-only table."""
    assert not program.has_backward, f"the schedule {program.table.name} is not forward-only"

    def local(params: Tree, batch: Batch, constants: Tree, columns: _Columns) -> tuple:
        buffers = _run_ticks(program, params, batch, constants, columns, None)
        return _total(buffers.loss), _count_tokens(batch)

    return _over_mesh(program, local, lambda params: (_SAME, _SAME))


_AXES = ("dp", "pp")
_SAME = PartitionSpec()


class _Columns(NamedTuple):
    ranks: RankColumns
    ends: EndColumns


def _over_mesh(program: Program, local: Callable, out_specs: Callable[[Tree], Tree]) -> Callable:
    """``local`` on every device of the mesh, with its own rank's columns of the table."""
    columns = _Columns(program.table.ranks, program.table.ends)
    column_specs = _Columns(
        RankColumns(*[PartitionSpec(None, "pp")] * len(RankColumns._fields)),
        EndColumns(*[_SAME] * len(EndColumns._fields)),
    )

    def run(params: Tree, batch: Batch, constants: Tree) -> Tree:
        batch_specs = jax.tree.map(lambda _: PartitionSpec(None, "dp"), batch)
        mapped = jax.shard_map(
            local,
            mesh=program.mesh,
            in_specs=(stage_specs(params), batch_specs, _SAME, column_specs),
            out_specs=out_specs(params),
        )
        return mapped(params, batch, constants, columns)

    return run


def _run_ticks(
    program: Program,
    params: Tree,
    batch: Batch,
    constants: Tree,
    columns: _Columns,
    scale: Float[Array, ""] | None,
) -> Buffers:
    """All ticks of one step, on one device."""
    weights = varying(_local_weights(params, program.settings.compute_dtype), _AXES)
    batch, constants = varying((batch, constants), _AXES)
    loops = _stage_loops(program, weights, batch, constants)
    ends = _pipe_ends(program, weights, batch, scale)
    message = jax.ShapeDtypeStruct(
        (_num_tokens(batch), weights["embedding"].shape[1]), program.settings.compute_dtype
    )
    buffers = allocate(
        program.table,
        message=message,
        weights=weights,
        split=loops.split,
        num_layers=program.layout.max_layers,
        fill=program.settings.fill,
    )
    # a rank's own columns have lost their dimension of ranks
    rows = _Columns(RankColumns(*(column[:, 0] for column in columns.ranks)), columns.ends)

    def tick(buffers: Buffers, row: _Columns) -> tuple[Buffers, None]:
        buffers = _meet_ends(program, ends, buffers, row.ends)
        buffers = _act(program, loops, buffers, row.ranks)
        return _exchange(program, buffers, row.ranks), None

    return jax.lax.scan(tick, varying(buffers, _AXES), rows)[0]


def _local_weights(params: Tree, dtype: jnp.dtype) -> Tree:
    """This rank's weights in the compute dtype, once a step; what is small stays fp32."""
    layers = jax.tree.map(lambda leaf: leaf[0], params["layers"])
    kernels = jax.tree.map(lambda leaf: leaf.astype(dtype), layers["kernels"])
    vocabulary = {group: params[group].astype(dtype) for group in VOCABULARY_GROUPS if group in params}
    return {"layers": {"kernels": kernels, "small": layers["small"]}, "final": params["final"], **vocabulary}


def _num_tokens(batch: Batch) -> int:
    """Tokens of one microbatch on this device."""
    return batch.tokens.shape[1] * batch.tokens.shape[2]


def _stage_loops(program: Program, weights: Tree, batch: Batch, constants: Tree) -> StageLoops:
    """The loops of this rank; what its layer leaves behind is found from the shapes of one call."""
    layout, settings = program.layout, program.settings
    layer = program.contract.layer

    def context(microbatch: Array) -> tuple:
        extras = {name: extra[microbatch] for name, extra in batch.extras.items()}
        return constants, extras

    shape = (*batch.tokens.shape[1:], weights["embedding"].shape[1])
    split = None
    if program.has_backward:
        one_layer = jax.tree.map(lambda leaf: leaf[0, 0], weights["layers"])
        x = varying(jnp.zeros(shape, settings.compute_dtype), _AXES)
        split = split_layer(layer, one_layer, x, context=context(jnp.int32(0)), remat=settings.remat)
    return StageLoops(
        layer=layer,
        split=split,
        params=weights["layers"],
        context=context,
        shape=shape,
        layers_of_chunk=jnp.asarray(layout.layers_of_chunk())[jax.lax.axis_index("pp")],
        num_layers=layout.max_layers if layout.is_even else None,
    )


def _pipe_ends(program: Program, weights: Tree, batch: Batch, scale: Float[Array, ""] | None) -> Ends:
    tokens = _num_tokens(batch)
    limit = min(program.settings.head_tokens, tokens)
    return Ends(
        final=program.contract.final,
        weights=weights,
        batch=batch,
        scale=scale,
        vocab_size=program.layout.vocab_size,
        axis="pp" if program.layout.placement.num_ranks > 1 else None,
        chunk_tokens=next(size for size in range(limit, 0, -1) if tokens % size == 0),
    )


def _meet_ends(program: Program, ends: Ends, buffers: Buffers, row: EndColumns) -> Buffers:
    """The part of a tick that all ranks do together; every trip count is the same on all of them."""
    placement = program.layout.placement
    for pipe in range(placement.num_pipes):
        first, last = placement.rank(0, pipe), placement.rank(placement.num_stages - 1, pipe)
        if program.has_backward:
            with jax.named_scope("unembed"):
                buffers = run_unembed(ends, buffers, row.unembed[pipe], rank=first)
            with jax.named_scope("head"):
                buffers = run_head(ends, buffers, row.head[pipe], row.head_slot[pipe], rank=last)
        else:
            with jax.named_scope("head"):
                buffers = run_head_loss(ends, buffers, row.head[pipe], rank=last)
        with jax.named_scope("embed"):
            buffers = run_embed(ends, buffers, row.embed[pipe], row.embed_slot[pipe], rank=first)
    return buffers


def _act(program: Program, loops: StageLoops, buffers: Buffers, row: RankColumns) -> Buffers:
    """At most one action; its result, or whatever the trash slot held, is the new message."""
    work = Work(row.chunk, row.microbatch, row.residual_slot, row.weight_slot)
    message = jax.lax.dynamic_index_in_dim(buffers.inbox, row.inbox_read, keepdims=False).reshape(loops.shape)
    residuals, weight_inputs, gradients = buffers.residuals, buffers.weight_inputs, dict(buffers.gradients)
    layers = dict(gradients["layers"])
    if FORWARD in program.kinds:
        with jax.named_scope("F"):
            message, residuals = run_forward(loops, row.kind == FORWARD, work, message, residuals)
    if BACKWARD in program.kinds:
        with jax.named_scope("B"):
            message, weight_inputs, layers["small"] = run_backward(
                loops, row.kind == BACKWARD, work, message, residuals, weight_inputs, layers["small"]
            )
    if WEIGHT in program.kinds:
        with jax.named_scope("W"):
            layers["kernels"] = run_weight(loops, row.kind == WEIGHT, work, weight_inputs, layers["kernels"])
    if BACKWARD_WEIGHT in program.kinds:
        with jax.named_scope("BW"):
            message, layers = run_backward_weight(
                loops, row.kind == BACKWARD_WEIGHT, work, message, residuals, layers
            )
    gradients["layers"] = layers
    return buffers._replace(
        message=message.reshape(buffers.message.shape),
        residuals=residuals,
        weight_inputs=weight_inputs,
        gradients=gradients,
    )


def _exchange(program: Program, buffers: Buffers, row: RankColumns) -> Buffers:
    """The message goes one hop both ways; the table says which inbox slot keeps what arrives."""
    table, inbox = program.table, buffers.inbox
    leaving = buffers.message if table.transfer_ticks == 1 else buffers.travelling
    num_ranks = table.placement.num_ranks

    def keep(inbox: Array, arrived: Array, slot: Array) -> Array:
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


def _count_tokens(batch: Batch) -> Int32[Array, ""]:
    return jax.lax.psum(jnp.sum(batch.labels >= 0, dtype=jnp.int32), "dp")


def _total(loss: Float[Array, ""]) -> Float[Array, ""]:
    return _of_first_rank(jax.lax.psum(loss, "dp"))


def _of_first_rank(value: Array) -> Array:
    """What all ranks hold the same, marked as such."""
    return jax.lax.psum(jnp.where(jax.lax.axis_index("pp") == 0, value, 0), "pp")
