"""One SPMD program for every schedule: a scan over the rows of a tick table, or one for each of its segments.

Each device of the mesh runs the same program; its rank's columns of the table say what it does (tick.py).
With two pipes it works on the stages of both; the second pipe's weights are made for the step (pipes.py).
Nothing here is differentiated: the backward pass is in the table, and ``jax.vjp`` is taken of one layer
at a time (split_vjp.py) and of ``final`` (ends.py).

    mesh axes   dp   the batch; gradients are reduced once, after the scan, or with ZeRO 2 and 3 in each W
                pp   the ranks, and the vocabulary
                tp   the features of kernels (products.py), and the vocabulary
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int32

from jaxpipe.lowering.segments import Segment, TickUse
from jaxpipe.lowering.table import EndColumns, RankColumns
from jaxpipe.pipeline.buffers import KEPT, SLOTS, Buffers, Slots, fill_of
from jaxpipe.pipeline.contract import VOCABULARY_GROUPS, Batch, LossAndGradients, Tree
from jaxpipe.pipeline.device_dimension import with_devices, without_devices
from jaxpipe.pipeline.pipes import add_ends, add_pipes
from jaxpipe.pipeline.program import Program
from jaxpipe.pipeline.sharding import scatter_gradients, stage_specs
from jaxpipe.pipeline.step_setup import prepare
from jaxpipe.pipeline.tick import run_plain_tick
from jaxpipe.pipeline.tick_clock import mark_start, of_all_ranks, run_timed_tick, with_starts


def make_loss_and_gradients(program: Program) -> Callable[[Tree, Batch, Tree], LossAndGradients]:
    """``(params, batch, constants) -> LossAndGradients``, to be jitted by the caller.

    params: in stage layout (layout.py), fp32; the gradients come back like them.
    batch: ``[microbatches, global batch / microbatches, sequence]``, split over ``dp``.
    """
    assert program.has_backward, f"the schedule {program.table.name} has no backward action"

    def local(params: Tree, batch: Batch, constants: Tree, columns: Columns) -> LossAndGradients:
        return _local_loss_and_gradients(program, params, batch, constants, columns)[0]

    return _over_mesh(program, local, lambda params: _gradient_specs(program, params))


def make_loss_and_gradients_in_slots(
    program: Program, *, timed: bool = False
) -> "Callable[[Tree, Batch, Tree, Slots], tuple[LossAndGradients | Timed, Slots]]":
    """The same with slots and accumulators (``make_empty_slots``) as one more argument and result.

    To be donated, and kept by the jit (``keep_unused``): of the accumulators only the memory matters.

    Slots that stay from step to step need no filling. On CPU that is more than it seems: XLA fills one and
    copies it to others of its shape, and the system finds all their pages anew for each step.

    timed: with marks of the host's clock; to the bit the same results, and when each part ran.
    """
    assert program.has_backward, f"the schedule {program.table.name} has no backward action"
    lie = PartitionSpec(program.axes)

    def local(params: Tree, batch: Batch, constants: Tree, slots: Slots, columns: Columns) -> tuple:
        own = without_devices({name: slots[name] for name in SLOTS})
        result, buffers, stamps = _local_loss_and_gradients(
            program, params, batch, constants, columns, slots=own, timed=timed
        )
        kept = with_devices(_kept(buffers))
        kept["layer_gradients"] = _overwritten(kept["layer_gradients"], result.gradients["layers"])
        if timed:
            all_stamps = of_all_ranks(stamps, program.axes, num_ranks=program.mesh.shape["pp"])
            return Timed(result, all_stamps), kept
        return result, kept

    def out_specs(params: Tree) -> tuple:
        specs = _gradient_specs(program, params)
        return Timed._make((specs, _SAME)) if timed else specs, lie

    return _over_mesh(program, local, out_specs, more=(lie,))


class Timed(NamedTuple):
    """A step whose ticks were timed, and of each rank the times of its first device (tick_clock.py)."""

    result: LossAndGradients
    stamps: Int32[Array, "ticks ranks marks 2"]


def make_empty_slots(program: Program, params: Tree, batch: Batch, constants: Tree) -> Callable[[], Slots]:
    """Allocates what all devices keep when called; the other arguments serve for their shapes."""
    shapes = _kept(buffer_shapes(program, params, batch, constants))
    num_devices, fill = program.mesh.size, program.settings.fill

    def make() -> Slots:
        return jax.tree.map(
            lambda leaf: jnp.full((num_devices, *leaf.shape), fill_of(leaf, fill), leaf.dtype), shapes
        )

    return jax.jit(make, out_shardings=NamedSharding(program.mesh, PartitionSpec(program.axes)))


def make_loss(program: Program) -> Callable[[Tree, Batch, Tree], tuple[Float[Array, ""], Int32[Array, ""]]]:
    """``(params, batch, constants) -> (summed loss, valid tokens)`` of a forward-only table."""
    assert not program.has_backward, f"the schedule {program.table.name} is not forward-only"

    def local(params: Tree, batch: Batch, constants: Tree, columns: Columns) -> tuple:
        buffers, _ = _run_ticks(program, params, batch, constants, columns, None)
        return _total(program, add_ends(buffers.ends).loss), _count_tokens(program, batch)

    return _over_mesh(program, local, lambda params: (_SAME, _SAME))


def make_given_ticks(program: Program) -> Callable[[Tree, Batch, Tree, "Columns"], Buffers]:
    """``(params, batch, constants, columns) -> Buffers`` after ticks that are told only when it is called.

    They must keep to what the program's table has: its kinds, slots and routes of messages. So one compiled
    program can time every action (profiling/). Of every leaf the devices' own follow each other.
    """
    assert not program.settings.specialised, "ticks that are given may do whatever the table does"

    def local(params: Tree, batch: Batch, constants: Tree, given: Columns, columns: Columns) -> Buffers:
        buffers, _ = _run_ticks(program, params, batch, constants, given, jnp.ones(()))
        return with_devices(buffers)

    lie = PartitionSpec(program.axes)
    return _over_mesh(program, local, lambda params: lie, more=(_COLUMN_SPECS,))


def buffer_shapes(program: Program, params: Tree, batch: Batch, constants: Tree) -> Buffers:
    """What one device holds while the ticks run, as shapes; the arguments may be shapes themselves."""

    def local(params: Tree, batch: Batch, constants: Tree, columns: Columns) -> Buffers:
        buffers = prepare(program, params, batch, constants, jnp.ones(()))[2]
        return with_devices(buffers)

    run = _over_mesh(program, local, lambda params: PartitionSpec(program.axes))
    shapes = jax.eval_shape(run, params, batch, constants)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), shapes)


_SAME = PartitionSpec()


class Columns(NamedTuple):
    """The rows of a table, as the ticks read them."""

    ranks: RankColumns[Any]
    ends: EndColumns[Any]


_COLUMN_SPECS = Columns(
    RankColumns(*[PartitionSpec(None, "pp")] * len(RankColumns._fields)),
    EndColumns(*[_SAME] * len(EndColumns._fields)),
)


def _over_mesh(
    program: Program,
    local: Callable,
    out_specs: Callable[[Tree], Tree],
    *,
    more: tuple[PartitionSpec | Columns, ...] = (),
) -> Callable:
    """``local`` on every device of the mesh; its last argument are its own rank's columns of the table.

    more: how those arguments lie that are not parameters, batch and constants.
    """
    placement = program.table.placement
    assert placement == program.layout.placement, "table and layout place the stages differently"
    assert placement.num_ranks == program.mesh.shape["pp"], "the mesh has another number of ranks"
    assert placement.num_pipes <= 2, f"{placement.num_pipes} pipes, but only one or two can run"
    sharding = program.layout.sharding
    assert sharding.tp == program.mesh.shape.get("tp", 1), "the mesh has another number of devices a rank"
    columns = Columns(program.table.ranks, program.table.ends)

    def run(params: Tree, batch: Batch, constants: Tree, *others: Tree) -> Tree:
        batch_specs = jax.tree.map(
            lambda _: PartitionSpec(None, "dp" if "dp" in program.axes else None), batch
        )
        mapped = jax.shard_map(
            local,
            mesh=program.mesh,
            in_specs=(stage_specs(params, sharding), batch_specs, _SAME, *more, _COLUMN_SPECS),
            out_specs=out_specs(params),
        )
        return mapped(params, batch, constants, *others, columns)

    return run


def _gradient_specs(program: Program, params: Tree) -> LossAndGradients:
    return LossAndGradients._make((_SAME, _SAME, stage_specs(params, program.layout.sharding)))


def _local_loss_and_gradients(
    program: Program,
    params: Tree,
    batch: Batch,
    constants: Tree,
    columns: Columns,
    *,
    slots: Slots | None = None,
    timed: bool = False,
) -> tuple[LossAndGradients, Buffers, Any]:
    """A whole step on one device, the buffers after it, and when each part of its ticks ran, if ``timed``."""
    num_tokens = _count_tokens(program, batch)
    scale = 1.0 / jnp.maximum(num_tokens, 1).astype(jnp.float32)
    buffers, besides = _run_ticks(program, params, batch, constants, columns, scale, slots=slots, timed=timed)
    gradients, loss = add_pipes(buffers, program.layout.placement, tied="head" not in params)
    gradients = _reduce(program, gradients)
    gradients["layers"] = with_devices(gradients["layers"])
    return LossAndGradients(_total(program, loss) * scale, num_tokens, gradients), buffers, besides


def _kept(buffers: Buffers) -> Slots:
    return {name: getattr(buffers, name) for name in KEPT}


def _overwritten(accumulators: Tree, gradients: Tree) -> Tree:
    """What may take the accumulators' place: the gradients, where they are as large.

    If the accumulators themselves came back, they would have to outlive a sum over ``dp``.
    """
    is_alike = jax.tree.map(lambda one, other: one.shape == other.shape, accumulators, gradients)
    return gradients if all(jax.tree.leaves(is_alike)) else accumulators


def _run_ticks(
    program: Program,
    params: Tree,
    batch: Batch,
    constants: Tree,
    columns: Columns,
    scale: Float[Array, ""] | None,
    *,
    slots: Slots | None = None,
    timed: bool = False,
) -> tuple[Buffers, Int32[Array, "ticks marks 2"] | None]:
    """All ticks of one step, on one device, and when each part of them ran, if ``timed``.

    slots: in place of new ones.
    """
    loops, ends, buffers = prepare(program, params, batch, constants, scale)
    buffers = buffers._replace(**(slots or {}))
    # a rank's own columns have lost their dimension of ranks
    rows = Columns(RankColumns(*(column[:, 0] for column in columns.ranks)), columns.ends)

    def tick(buffers: Buffers, row: Columns, use: TickUse) -> tuple[Buffers, Any]:
        run: Callable = run_timed_tick if timed else run_plain_tick
        return run(program, buffers, loops=loops, ends=ends, use=use, rank=row.ranks, both_ends=row.ends)

    began = None
    if timed:
        rows, began = mark_start(buffers, rows)
    stamps, segments = [], program.segments
    for segment in segments:
        own = rows if len(segments) == 1 else _rows_of(segment, rows)
        buffers, stamped = _run_segment(segment, tick, buffers, own)
        stamps.append(stamped)
    return buffers, None if began is None else with_starts(began, jnp.concatenate(stamps))


def _rows_of(segment: Segment, rows: Columns) -> Columns:
    return jax.tree.map(lambda column: column[segment.start : segment.stop], rows)


def _run_segment(
    segment: Segment, tick: Callable[..., tuple[Buffers, Any]], buffers: Buffers, rows: Columns
) -> tuple[Buffers, Any]:
    """The ticks of a segment: a scan over its periods, or the ticks themselves if there is only one."""

    def run_period(buffers: Buffers, rows: Columns) -> tuple[Buffers, Any]:
        results = []
        for number, use in enumerate(segment.uses):
            buffers, result = tick(buffers, jax.tree.map(lambda column, n=number: column[n], rows), use)
            results.append(result)
        return buffers, jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)

    if rows.ends.head.shape[0] == segment.period:
        return run_period(buffers, rows)
    if segment.period == 1:
        return jax.lax.scan(lambda buffers, row: tick(buffers, row, segment.uses[0]), buffers, rows)
    periods = jax.tree.map(lambda column: column.reshape(-1, segment.period, *column.shape[1:]), rows)
    buffers, results = jax.lax.scan(run_period, buffers, periods)
    return buffers, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results)


def _reduce(program: Program, gradients: Tree) -> Tree:
    """Over ``dp`` what is not yet reduced, over all devices that hold a parameter together."""
    sharding = program.layout.sharding
    layers = gradients["layers"]
    big = {group: gradients[group] for group in VOCABULARY_GROUPS if group in gradients}
    big["kernels"] = layers["kernels"]
    if sharding.zero == 0:
        big = _sum_over_copies(program, big)
    elif sharding.zero == 1:
        big = scatter_gradients(big, sharding)
    small, final = _sum_over_copies(program, (layers["small"], gradients["final"]))
    if sharding.token_shards > 1:
        small = jax.tree.map(lambda gradient: jax.lax.psum(gradient, "tp"), small)
    elif sharding.tp > 1:
        small = jax.tree.map(lambda gradient: _of_first(gradient, ("tp",)), small)
    final = jax.tree.map(lambda gradient: _of_first(gradient, program.pipeline_axes), final)
    return {"layers": {"kernels": big.pop("kernels"), "small": small}, "final": final, **big}


def _sum_over_copies(program: Program, tree: Tree) -> Tree:
    if "dp" not in program.axes:
        return tree
    return jax.tree.map(lambda leaf: jax.lax.psum(leaf, "dp"), tree)


def _count_tokens(program: Program, batch: Batch) -> Int32[Array, ""]:
    return _sum_over_copies(program, jnp.sum(batch.labels >= 0, dtype=jnp.int32))


def _total(program: Program, loss: Float[Array, ""]) -> Float[Array, ""]:
    return _of_first(_sum_over_copies(program, loss), program.pipeline_axes)


def _of_first(value: Array, axes: tuple[str, ...]) -> Array:
    """What all devices along ``axes`` hold the same, marked as such."""
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axes) == 0, value, 0), axes)
