"""One SPMD program for every schedule: a scan over the rows of a tick table.

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
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int32

from jaxpipe.lowering.table import EndColumns, RankColumns
from jaxpipe.pipeline.buffers import Buffers, allocate
from jaxpipe.pipeline.contract import VOCABULARY_GROUPS, Batch, LossAndGradients, Tree
from jaxpipe.pipeline.end_axes import EndAxes
from jaxpipe.pipeline.ends import Ends
from jaxpipe.pipeline.loops import StageLoops
from jaxpipe.pipeline.manual_axes import varying
from jaxpipe.pipeline.pipes import add_ends, add_pipes, copy_to_pipes
from jaxpipe.pipeline.program import Program
from jaxpipe.pipeline.sharding import gather_weights, scatter_gradients, stage_specs
from jaxpipe.pipeline.split_vjp import split_layer
from jaxpipe.pipeline.tick import run_tick


def make_loss_and_gradients(program: Program) -> Callable[[Tree, Batch, Tree], LossAndGradients]:
    """``(params, batch, constants) -> LossAndGradients``, to be jitted by the caller.

    params: in stage layout (layout.py), fp32; the gradients come back like them.
    batch: ``[microbatches, global batch / microbatches, sequence]``, split over ``dp``.
    """
    assert program.has_backward, f"the schedule {program.table.name} has no backward action"

    def local(params: Tree, batch: Batch, constants: Tree, columns: Columns) -> LossAndGradients:
        num_tokens = _count_tokens(batch)
        scale = 1.0 / jnp.maximum(num_tokens, 1).astype(jnp.float32)
        buffers = _run_ticks(program, params, batch, constants, columns, scale)
        gradients, loss = add_pipes(buffers, program.layout.placement, tied="head" not in params)
        gradients = _reduce(program, gradients)
        gradients["layers"] = jax.tree.map(lambda gradient: gradient[None], gradients["layers"])
        return LossAndGradients(_total(program, loss) * scale, num_tokens, gradients)

    def specs(params: Tree) -> LossAndGradients:
        return LossAndGradients._make((_SAME, _SAME, stage_specs(params, program.layout.sharding)))

    return _over_mesh(program, local, specs)


def make_loss(program: Program) -> Callable[[Tree, Batch, Tree], tuple[Float[Array, ""], Int32[Array, ""]]]:
    """``(params, batch, constants) -> (summed loss, valid tokens)`` of a forward-only table."""
    assert not program.has_backward, f"the schedule {program.table.name} is not forward-only"

    def local(params: Tree, batch: Batch, constants: Tree, columns: Columns) -> tuple:
        buffers = _run_ticks(program, params, batch, constants, columns, None)
        return _total(program, add_ends(buffers.ends).loss), _count_tokens(batch)

    return _over_mesh(program, local, lambda params: (_SAME, _SAME))


def make_given_ticks(program: Program) -> Callable[[Tree, Batch, Tree, "Columns"], Buffers]:
    """``(params, batch, constants, columns) -> Buffers`` after ticks that are told only when it is called.

    They must keep to what the program's table has: its kinds, slots and routes of messages. So one compiled
    program can time every action (profiling/). Of every leaf the devices' own follow each other.
    """

    def local(params: Tree, batch: Batch, constants: Tree, columns: Columns) -> Buffers:
        buffers = _run_ticks(program, params, batch, constants, columns, jnp.ones(()))
        return jax.tree.map(lambda leaf: leaf[None], buffers)

    return _over_mesh(program, local, lambda params: PartitionSpec(_axes(program)))


def buffer_shapes(program: Program, params: Tree, batch: Batch, constants: Tree) -> Buffers:
    """What one device holds while the ticks run, as shapes; the arguments may be shapes themselves."""

    def local(params: Tree, batch: Batch, constants: Tree, columns: Columns) -> Buffers:
        buffers = _prepare(program, params, batch, constants, jnp.ones(()))[2]
        return jax.tree.map(lambda leaf: leaf[None], buffers)

    run = _over_mesh(program, local, lambda params: PartitionSpec(_axes(program)))
    shapes = jax.eval_shape(run, params, batch, constants)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), shapes)


_SAME = PartitionSpec()


class Columns(NamedTuple):
    """The rows of a table, as the ticks read them."""

    ranks: RankColumns[Any]
    ends: EndColumns[Any]


def _over_mesh(program: Program, local: Callable, out_specs: Callable[[Tree], Tree]) -> Callable:
    """``local`` on every device of the mesh, with its own rank's columns of the table, or of those given."""
    placement = program.table.placement
    assert placement == program.layout.placement, "table and layout place the stages differently"
    assert placement.num_ranks == program.mesh.shape["pp"], "the mesh has another number of ranks"
    assert placement.num_pipes <= 2, f"{placement.num_pipes} pipes, but only one or two can run"
    sharding = program.layout.sharding
    assert sharding.tp == program.mesh.shape.get("tp", 1), "the mesh has another number of devices a rank"
    columns = Columns(program.table.ranks, program.table.ends)
    column_specs = Columns(
        RankColumns(*[PartitionSpec(None, "pp")] * len(RankColumns._fields)),
        EndColumns(*[_SAME] * len(EndColumns._fields)),
    )

    def run(params: Tree, batch: Batch, constants: Tree, given: Columns = columns) -> Tree:
        batch_specs = jax.tree.map(lambda _: PartitionSpec(None, "dp"), batch)
        mapped = jax.shard_map(
            local,
            mesh=program.mesh,
            in_specs=(stage_specs(params, sharding), batch_specs, _SAME, column_specs),
            out_specs=out_specs(params),
        )
        return mapped(params, batch, constants, given)

    return run


def _run_ticks(
    program: Program,
    params: Tree,
    batch: Batch,
    constants: Tree,
    columns: Columns,
    scale: Float[Array, ""] | None,
) -> Buffers:
    """All ticks of one step, on one device."""
    loops, ends, buffers = _prepare(program, params, batch, constants, scale)
    # a rank's own columns have lost their dimension of ranks
    rows = Columns(RankColumns(*(column[:, 0] for column in columns.ranks)), columns.ends)

    def tick(buffers: Buffers, row: Columns) -> tuple[Buffers, None]:
        return run_tick(program, buffers, loops=loops, ends=ends, rank=row.ranks, both_ends=row.ends), None

    return jax.lax.scan(tick, buffers, rows)[0]


def _prepare(
    program: Program, params: Tree, batch: Batch, constants: Tree, scale: Float[Array, ""] | None
) -> tuple[StageLoops, Ends, Buffers]:
    """What the ticks need, computed once a step."""
    axes = _axes(program)
    shards = _compute_weights(program, varying(params, axes))
    sharding = program.layout.sharding
    weights = gather_weights(shards, sharding) if sharding.zero in (1, 2) else shards
    batch, constants = varying((batch, constants), axes)
    loops = _stage_loops(program, weights, batch, constants)
    buffers = allocate(
        program.table,
        message=_message_shape(program, weights, batch),
        accumulated=shards if sharding.zero >= 2 else weights,
        split=loops.split,
        num_layers=program.layout.max_layers,
        fill=program.settings.fill,
    )
    return loops, _pipe_ends(program, weights, batch, scale), varying(buffers, axes)


def _compute_weights(program: Program, params: Tree) -> Tree:
    """This rank's weights of all pipes in the compute dtype, once a step; what is small stays fp32."""
    dtype = program.settings.compute_dtype
    layers = jax.tree.map(lambda leaf: leaf[0], params["layers"])
    layers["kernels"] = jax.tree.map(lambda leaf: leaf.astype(dtype), layers["kernels"])
    layers = copy_to_pipes(layers, program.layout.placement)
    vocabulary = {group: params[group].astype(dtype) for group in VOCABULARY_GROUPS if group in params}
    return {"layers": layers, "final": params["final"], **vocabulary}


def _message_shape(program: Program, weights: Tree, batch: Batch) -> jax.ShapeDtypeStruct:
    """``[tokens, hidden]`` of one microbatch on this device."""
    batch_size, length, hidden = _activation_shape(program, weights, batch)
    return jax.ShapeDtypeStruct((batch_size * length, hidden), program.settings.compute_dtype)


def _activation_shape(program: Program, weights: Tree, batch: Batch) -> tuple[int, int, int]:
    """Batch, sequence, hidden of what goes from layer to layer."""
    _, batch_size, length = batch.tokens.shape
    shares = program.layout.sharding.token_shards
    assert length % shares == 0, f"{length} tokens of a sequence over tp={shares}"
    hidden_shards = program.mesh.shape["dp"] if program.layout.sharding.zero == 3 else 1
    return batch_size, length // shares, weights["embedding"].shape[1] * hidden_shards


def _stage_loops(program: Program, weights: Tree, batch: Batch, constants: Tree) -> StageLoops:
    """The loops of this rank; what its layer leaves behind is found from the shapes of one call."""
    layout, settings, sharding = program.layout, program.settings, program.layout.sharding
    layer, layers = program.contract.layer, weights["layers"]
    shared = sharding.shared(layers["kernels"])

    def context(microbatch: Array) -> tuple:
        extras = {name: extra[microbatch] for name, extra in batch.extras.items()}
        return constants, extras

    def gather(params: Tree) -> Tree:
        return gather_weights(params, sharding) if sharding.zero == 3 else params

    def scatter(gradients: Tree) -> Tree:
        if sharding.zero < 2:
            return gradients
        return scatter_gradients({"kernels": gradients}, sharding)["kernels"]

    shape = _activation_shape(program, weights, batch)
    split = None
    if program.has_backward:
        one_layer = gather(jax.tree.map(lambda leaf: leaf[0, 0], layers))
        x = varying(jnp.zeros(shape, settings.compute_dtype), _axes(program))
        split = split_layer(
            layer, one_layer, x, context=context(jnp.int32(0)), remat=settings.remat, shared=shared
        )
    return StageLoops(
        layer=layer,
        split=split,
        params=layers,
        shared=shared,
        gather=gather,
        scatter=scatter,
        context=context,
        shape=shape,
        layers_of_chunk=jnp.asarray(layout.layers_of_chunk())[jax.lax.axis_index("pp")],
        num_layers=layout.max_layers if layout.is_even else None,
    )


def _pipe_ends(program: Program, weights: Tree, batch: Batch, scale: Float[Array, ""] | None) -> Ends:
    sharding, mesh = program.layout.sharding, program.mesh.shape
    shares = sharding.token_shards
    tokens = batch.tokens.shape[1] * batch.tokens.shape[2] // shares
    limit = min(max(program.settings.head_tokens // shares, 1), tokens)
    vocabulary = tuple(axis for axis in ("pp", "tp") if mesh.get(axis, 1) > 1)
    return Ends(
        final=program.contract.final,
        weights=weights,
        batch=batch,
        shares=shares,
        scale=scale,
        vocab_size=program.layout.vocab_size,
        axes=EndAxes(
            ranks="pp" if mesh["pp"] > 1 else None,
            vocabulary=vocabulary or None,
            sequence="tp" if shares > 1 else None,
            weights="dp" if sharding.zero == 3 else None,
            sums="dp" if sharding.zero >= 2 else None,
        ),
        chunk_tokens=next(size for size in range(limit, 0, -1) if tokens % size == 0),
    )


def _reduce(program: Program, gradients: Tree) -> Tree:
    """Over ``dp`` what is not yet reduced, over all devices that hold a parameter together."""
    sharding = program.layout.sharding
    layers = gradients["layers"]
    big = {group: gradients[group] for group in VOCABULARY_GROUPS if group in gradients}
    big["kernels"] = layers["kernels"]
    if sharding.zero == 0:
        big = _sum_over_copies(big)
    elif sharding.zero == 1:
        big = scatter_gradients(big, sharding)
    small, final = _sum_over_copies((layers["small"], gradients["final"]))
    if sharding.token_shards > 1:
        small = jax.tree.map(lambda gradient: jax.lax.psum(gradient, "tp"), small)
    elif sharding.tp > 1:
        small = jax.tree.map(lambda gradient: _of_first(gradient, ("tp",)), small)
    final = jax.tree.map(lambda gradient: _of_first(gradient, _rank_axes(program)), final)
    return {"layers": {"kernels": big.pop("kernels"), "small": small}, "final": final, **big}


def _sum_over_copies(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jax.lax.psum(leaf, "dp"), tree)


def _count_tokens(batch: Batch) -> Int32[Array, ""]:
    return jax.lax.psum(jnp.sum(batch.labels >= 0, dtype=jnp.int32), "dp")


def _total(program: Program, loss: Float[Array, ""]) -> Float[Array, ""]:
    return _of_first(jax.lax.psum(loss, "dp"), _rank_axes(program))


def _axes(program: Program) -> tuple[str, ...]:
    """The mesh axes over which values differ; ``tp`` is none of them where a rank is one device."""
    return ("dp", "pp", "tp") if program.layout.sharding.tp > 1 else ("dp", "pp")


def _rank_axes(program: Program) -> tuple[str, ...]:
    """The axes of the devices that make one pipeline."""
    return _axes(program)[1:]


def _of_first(value: Array, axes: tuple[str, ...]) -> Array:
    """What all devices along ``axes`` hold the same, marked as such."""
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axes) == 0, value, 0), axes)
