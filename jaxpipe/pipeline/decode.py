"""One SPMD program that continues a text, on any mesh, with the parameters as they lie.

A block of new positions passes the stages in the order of the model. At each one the rank that holds it runs
its layers, the others none, and what comes out goes to all ranks (no more than ``[batch, block, hidden]``):

    embedding -> [stage 0 on its rank] -> all -> [stage 1 on its rank] -> all -> ... -> final, head -> logits

So a token takes the time of the whole model, one rank after the other: that is what a single text costs.
Nothing of the model is gathered that a step of training does not gather: each rank runs what it holds, layers
of ZeRO 3 are put together one at a time, and of two pipes the first one works.

    begin    reads the prompt, ``block`` positions at a time, into an empty cache
    extend   draws a token, reads it, draws the next, in a loop on the devices

What layers keep (cache.py) stays on the rank that holds them. Tokens and logits are the same on all devices,
to the bit, since each logit is one sum over all of them: so all draw the same token, and loops end together.

A batch here is a number of samples of equal length; every copy of the pipeline (``dp``) works on all of them.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int32, UInt32

from jaxpipe.pipeline.cache import Place, empty_cache
from jaxpipe.pipeline.contract import VOCABULARY_GROUPS, Cached, StageContract, Tree
from jaxpipe.pipeline.device_dimension import without_devices
from jaxpipe.pipeline.end_axes import EndAxes, broadcast, embeddings
from jaxpipe.pipeline.layout import Layout
from jaxpipe.pipeline.loops import over_layers, read, tied
from jaxpipe.pipeline.manual_axes import varying
from jaxpipe.pipeline.sampling import Sampling, next_tokens
from jaxpipe.pipeline.sharding import Sharding, gather_weights, stage_specs
from jaxpipe.pipeline.split_vjp import shared_kernels

# einsum letters: b batch, d hidden, n rows of the vocabulary of this shard

BLOCK = 64
"""Positions of a prompt that are read at a time: it bounds the scores, and what padding costs."""


class Decoder(NamedTuple):
    """What is settled before tracing; ``layout.sharding.sequence`` does not matter here."""

    contract: StageContract
    layout: Layout
    mesh: Mesh
    compute_dtype: jnp.dtype = jnp.float32


class Decoding(NamedTuple):
    """Texts in the making.

    tokens: the first ``length`` are there; after the end of a document, its token over and over.
    is_done: whether the end of the document was drawn.
    logits: of the token that follows, fp32.
    cache: what layers keep of the first ``length`` positions, ``[copies * ranks * chunks, ...]``.
    """

    tokens: Int32[Array, "b s"]
    length: Int32[Array, ""]
    is_done: Bool[Array, " b"]
    logits: Float[Array, "b v"]
    cache: Tree


def padded_length(length: int, *, block: int = BLOCK) -> int:
    """Positions of a decoding that is to hold ``length``: whole blocks."""
    return -(-length // block) * block


def make_begin(
    decoder: Decoder, *, block: int = BLOCK
) -> Callable[[Tree, Int32[Array, "b s"], Int32[Array, ""], Tree], Decoding]:
    """``(params, tokens, length, constants) -> Decoding`` that has read the first ``length`` tokens.

    length: at least 1. Tokens have as many positions as the text may get, in whole blocks, and constants
    reach as far; what stands after the first ``length`` is not looked at.
    """

    def local(params: Tree, tokens: Array, length: Array, constants: Tree) -> Decoding:
        reader = _make_reader(decoder, params, constants)
        batch, num_positions = tokens.shape
        assert num_positions % block == 0, f"{num_positions} positions are no whole blocks of {block}"
        layout = decoder.layout
        kept = reader.cached.kept(batch, num_positions, layout.sharding.tp, decoder.compute_dtype)
        cache = empty_cache(kept, num_chunks=layout.placement.num_chunks, num_layers=layout.max_layers)

        def read_block(index: Array, carry: tuple[Array, Tree]) -> tuple[Array, Tree]:
            _, cache = carry
            first = index * block
            new = jax.lax.dynamic_slice_in_dim(tokens, first, block, axis=1)
            ys, cache = _read_positions(reader, new, first, cache)
            last = jnp.clip(length - 1 - first, 0, block - 1)
            return jax.lax.dynamic_index_in_dim(ys, last, axis=1, keepdims=False), cache

        y = jnp.zeros((batch, reader.hidden), decoder.compute_dtype)
        num_blocks = (length + block - 1) // block
        y, cache = jax.lax.fori_loop(0, num_blocks, read_block, varying((y, cache), reader.axes))
        is_done = jnp.zeros(batch, bool)
        return Decoding(tokens, length, is_done, _logits(reader, y), cache)

    def begin(params: Tree, tokens: Array, length: Array, constants: Tree) -> Decoding:
        return _over_mesh(decoder, local, params, (_SAME, _SAME, _SAME))(params, tokens, length, constants)

    return begin


def make_extend(
    decoder: Decoder, sampling: Sampling, *, end: int | None
) -> Callable[[Tree, Decoding, Int32[Array, ""], UInt32[Array, ""], Tree], Decoding]:
    """``(params, decoding, length, seed, constants) -> Decoding`` of so many tokens, or done before.

    end: the token that ends a document, and with it a sample; when all have ended, nothing more is read.
    """

    def local(params: Tree, decoding: Decoding, length: Array, seed: Array, constants: Tree) -> Decoding:
        reader = _make_reader(decoder, params, constants)

        def goes_on(at: Decoding) -> Array:
            return (at.length < length) & ~jnp.all(at.is_done)

        def step(at: Decoding) -> Decoding:
            new = next_tokens(at.logits, sampling, seed=seed, position=at.length)
            is_done = at.is_done
            if end is not None:
                new = jnp.where(is_done, end, new)
                is_done = is_done | (new == end)
            tokens = jax.lax.dynamic_update_slice_in_dim(at.tokens, new[:, None], at.length, axis=1)
            y, cache = _read_positions(reader, new[:, None], at.length, at.cache)
            return Decoding(tokens, at.length + 1, is_done, _logits(reader, y[:, 0]), cache)

        return jax.lax.while_loop(goes_on, step, decoding)

    def extend(params: Tree, decoding: Decoding, length: Array, seed: Array, constants: Tree) -> Decoding:
        specs = (_decoding_specs(decoder), _SAME, _SAME, _SAME)
        return _over_mesh(decoder, local, params, specs)(params, decoding, length, seed, constants)

    return extend


_SAME = PartitionSpec()


class _Reader(NamedTuple):
    """What reads positions on one device.

    hidden: the width of the residual stream; with ZeRO 3 a device holds less of the vocabulary.
    axes: those of the mesh over which values may differ.
    """

    decoder: Decoder
    cached: Cached
    weights: Tree
    constants: Tree
    hidden: int
    axes: tuple[str, ...]
    ends: EndAxes


def _over_mesh(
    decoder: Decoder, local: Callable[..., Decoding], params: Tree, specs: tuple
) -> Callable[..., Decoding]:
    layout, mesh = decoder.layout, decoder.mesh
    assert layout.placement.num_ranks == mesh.shape["pp"], "the mesh has another number of ranks"
    assert layout.sharding.tp == mesh.shape.get("tp", 1), "the mesh has another number of devices a rank"
    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(stage_specs(params, layout.sharding), *specs),
        out_specs=_decoding_specs(decoder),
    )


def _decoding_specs(decoder: Decoder) -> Decoding:
    """A cache has a part for each copy of the pipeline: nothing says that they are the same."""
    heads = "tp" if decoder.layout.sharding.tp > 1 else None
    cache = PartitionSpec(("dp", "pp"), None, None, heads)
    return Decoding._make((_SAME, _SAME, _SAME, _SAME, cache))


def _make_reader(decoder: Decoder, params: Tree, constants: Tree) -> _Reader:
    cached, mesh, sharding = decoder.contract.cached, decoder.mesh.shape, _sharding(decoder)
    assert cached is not None, "the model cannot be decoded: its contract has no cached layer"
    axes = ("dp", "pp", "tp") if sharding.tp > 1 else ("dp", "pp")
    shards = _compute_weights(varying(params, axes), decoder.compute_dtype)
    weights = gather_weights(shards, sharding) if sharding.zero in (1, 2) else shards
    shares_hidden = sharding.zero == 3
    vocabulary = tuple(axis for axis in axes if axis != "dp" and mesh[axis] > 1)
    ends = EndAxes(
        ranks="pp" if mesh["pp"] > 1 else None,
        vocabulary=vocabulary or None,
        weights="dp" if shares_hidden else None,
    )
    hidden = weights["embedding"].shape[1] * (mesh["dp"] if shares_hidden else 1)
    return _Reader(decoder, cached, weights, varying(constants, axes), hidden, axes, ends)


def _sharding(decoder: Decoder) -> Sharding:
    """A single token has no sequence to split; parameters lie the same with sequence parallelism."""
    return decoder.layout.sharding._replace(sequence=False)


def _compute_weights(params: Tree, dtype: jnp.dtype) -> Tree:
    """This device's weights in the compute dtype, once a program; what is small stays fp32."""
    layers = without_devices(params["layers"])
    layers["kernels"] = jax.tree.map(lambda leaf: leaf.astype(dtype), layers["kernels"])
    vocabulary = {group: params[group].astype(dtype) for group in VOCABULARY_GROUPS if group in params}
    return {"layers": layers, "final": params["final"], **vocabulary}


def _read_positions(
    reader: _Reader, tokens: Int32[Array, "b t"], first: Array, cache: Tree
) -> tuple[Float[Array, "b t d"], Tree]:
    """What the last layer makes of these tokens, of which the first is at ``first``; on all devices."""
    layout = reader.decoder.layout
    stage_ranks, stage_chunks = (
        jnp.asarray(places[0]) for places in (layout.placement.stage_ranks, layout.placement.stage_chunks)
    )

    def run_stage(stage: Array, carry: tuple[Array, Tree]) -> tuple[Array, Tree]:
        x, cache = carry
        rank = stage_ranks[stage]
        acts = jnp.bool_(True) if reader.ends.ranks is None else jax.lax.axis_index("pp") == rank
        x, cache = _run_layers(reader, acts, stage_chunks[stage], first, (x, cache))
        return varying(broadcast(reader.ends, x, rank), reader.axes), cache

    with jax.named_scope("embed"):
        x = embeddings(reader.ends, reader.weights["embedding"], tokens.reshape(-1))
    x = varying(x.reshape(*tokens.shape, -1), reader.axes)
    return jax.lax.fori_loop(0, layout.placement.num_stages, run_stage, (x, cache))


def _run_layers(
    reader: _Reader, acts: Array, chunk: Array, first: Array, carry: tuple[Array, Tree]
) -> tuple[Array, Tree]:
    """``(x, cache)`` through the layers of a chunk, if this rank acts."""
    layout, sharding = reader.decoder.layout, _sharding(reader.decoder)
    layers = reader.weights["layers"]
    shared = sharding.shared(layers["kernels"])

    def body(counters: tuple, carry: tuple[Array, Tree]) -> tuple[Array, Tree]:
        x, cache = carry
        place = tied(counters, Place(chunk, counters[-1], first))
        params = tied(counters, read(layers, place.chunk, place.layer))
        if sharding.zero == 3:
            params = gather_weights(params, sharding)
        params = params | {"kernels": shared_kernels(params["kernels"], shared)}
        return reader.cached.layer(params, x, reader.constants, cache, place)

    counts = layout.layers_of_chunk()[:, : layout.placement.num_chunks]
    with jax.named_scope("layers"):
        return over_layers(
            acts,
            chunk,
            body,
            carry,
            layers_of_chunk=jnp.asarray(counts)[jax.lax.axis_index("pp")],
            num_layers=layout.max_layers if layout.is_even else None,
        )


def _logits(reader: _Reader, y: Float[Array, "b d"]) -> Float[Array, "b v"]:
    """Of the whole vocabulary, on all devices alike.

    Each device adds its rows to zeros, and those of ZeRO 3 their share of the hidden dimension as well, which
    moves ``[batch, vocabulary]`` and not the head.
    """
    head = reader.weights.get("head", reader.weights["embedding"])  # the embedding's where they are tied
    with jax.named_scope("head"):
        hidden = reader.decoder.contract.final(reader.weights["final"], y)
        if reader.ends.weights is None:
            counts = jax.lax.axis_index("dp") == 0
        else:
            counts = jnp.bool_(True)
            share = jax.lax.axis_index(reader.ends.weights) * head.shape[1]
            hidden = jax.lax.dynamic_slice_in_dim(hidden, share, head.shape[1], axis=1)
        own = jnp.einsum("bd,nd->bn", hidden, head, preferred_element_type=jnp.float32)
        place = partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
        layout, vocabulary = reader.decoder.layout, reader.ends.vocabulary
        first = 0 if vocabulary is None else jax.lax.axis_index(vocabulary) * head.shape[0]
        rows = place(jnp.zeros((y.shape[0], layout.padded_vocab_size), jnp.float32), own, first)
        return jax.lax.psum(jnp.where(counts, rows, 0), reader.axes)[:, : layout.vocab_size]
