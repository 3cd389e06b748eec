"""What the ticks of a step need, made once on each device: weights, the loops of its rank, ends, buffers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpipe.pipeline.buffers import Buffers, allocate
from jaxpipe.pipeline.contract import VOCABULARY_GROUPS, Batch, Tree
from jaxpipe.pipeline.device_dimension import without_devices
from jaxpipe.pipeline.end_axes import EndAxes
from jaxpipe.pipeline.ends import Ends
from jaxpipe.pipeline.loops import StageLoops
from jaxpipe.pipeline.manual_axes import varying
from jaxpipe.pipeline.pipes import copy_to_pipes
from jaxpipe.pipeline.program import Program
from jaxpipe.pipeline.sharding import gather_weights, scatter_gradients
from jaxpipe.pipeline.split_vjp import split_layer


def prepare(
    program: Program, params: Tree, batch: Batch, constants: Tree, scale: Float[Array, ""] | None
) -> tuple[StageLoops, Ends, Buffers]:
    """What the ticks of a step need, made once, on one device; ``scale`` is that of the loss."""
    axes = program.axes
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
    layers = without_devices(params["layers"])
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
        x = varying(jnp.zeros(shape, settings.compute_dtype), program.axes)
        split = split_layer(
            layer, one_layer, x, context=context(jnp.int32(0)), remat=program.split_remat, shared=shared
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
    placement = program.layout.placement
    return Ends(
        first=tuple(placement.rank(0, pipe) for pipe in range(placement.num_pipes)),
        last=tuple(placement.rank(placement.num_stages - 1, pipe) for pipe in range(placement.num_pipes)),
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
