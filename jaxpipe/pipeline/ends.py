"""What all ranks do together in a tick: embed, head and unembed.

Each is a loop whose trip count is the same on all ranks, so that the collectives inside are safe, and is 0
on most ticks. As in loops.py, bodies tie what they read to their counter: otherwise XLA moves the head's
products and all-reduces out of the loop, and every tick pays for them.

The head runs over chunks of tokens, which bounds the logits.

Each pipe has two ends, on the ranks that hold its first and its last stage. They read the same weights; what
they add up is kept apart (``EndSums``).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from jaxpipe.lowering.table import NONE
from jaxpipe.pipeline.buffers import Buffers, EndSums
from jaxpipe.pipeline.contract import Batch, Tree
from jaxpipe.pipeline.end_axes import (
    EndAxes,
    broadcast,
    embeddings,
    gather_head,
    own_share,
    scatter_head,
    with_rows_added,
)
from jaxpipe.pipeline.loops import tied
from jaxpipe.pipeline.manual_axes import varying, varying_axes
from jaxpipe.pipeline.vocabulary import cross_entropy, cross_entropy_loss


class Ends(NamedTuple):
    """What the ends of every pipe read, on one rank.

    weights: ``embedding``, ``final`` and, unless tied, ``head``; the vocabulary's rows of this device.
    shares: into how many, along the sequence, a message is cut: with sequence parallelism ``tp``, else 1.
    scale: 1 / valid tokens of the global batch, or None where only the loss is wanted.
    axes: the mesh axes that take part.
    chunk_tokens: the head runs over so many tokens of each message at a time; divides those of a message.
    """

    final: Callable[[Tree, Array], Array]
    weights: Tree
    batch: Batch
    shares: int
    scale: Float[Array, ""] | None
    vocab_size: int
    axes: EndAxes
    chunk_tokens: int


def run_embed(ends: Ends, buffers: Buffers, microbatch: Array, slot: Array, *, rank: int) -> Buffers:
    """The embeddings of a microbatch into an inbox slot of ``rank``; nothing if it is ``NONE``."""

    def body(turn: Array, inbox: Array) -> Array:
        microbatch_, slot_ = tied(turn, (microbatch, slot))
        table = tied(turn, ends.weights["embedding"])
        x = embeddings(ends.axes, table, _tokens(ends, microbatch_))
        return _put(inbox, x, _slot_on(ends, rank, slot_, inbox))

    return buffers._replace(inbox=_once(microbatch, body, buffers.inbox))


def run_unembed(ends: Ends, buffers: Buffers, microbatch: Array, *, pipe: int, rank: int) -> Buffers:
    """The message of ``rank``, d loss / d embeddings of a microbatch, into the embedding's gradient."""
    sums = buffers.ends[pipe]

    def body(turn: Array, gradient: Array) -> Array:
        microbatch_, message = tied(turn, (microbatch, buffers.message))
        dx = broadcast(ends.axes, message, rank)
        return with_rows_added(ends.axes, gradient, _tokens(ends, microbatch_), dx)

    return _with_sums(buffers, pipe, sums._replace(embedding=_once(microbatch, body, sums.embedding)))


def run_head(
    ends: Ends, buffers: Buffers, microbatch: Array, slot: Array, *, pipe: int, rank: int
) -> Buffers:
    """The message of ``rank``, the last stage's output, through ``final``, head and loss.

    Its gradient lands in an inbox slot of ``rank``.
    """
    assert ends.scale is not None, "only the loss is wanted: run_head_loss gives it"
    scale = ends.scale

    def body(chunk: Array, carry: tuple[Array, Array, Tree, Array]) -> tuple[Array, Array, Tree, Array]:
        inbox, d_head, d_final, loss = carry
        y, labels, first, head = _read_chunk(ends, buffers.message, chunk, microbatch, rank)
        hidden, pullback = jax.vjp(ends.final, ends.weights["final"], y)
        chunk_loss, d_hidden, d_head_chunk = cross_entropy(
            head, hidden, labels, vocab_size=ends.vocab_size, scale=scale, axis=ends.axes.vocabulary
        )
        d_final_chunk, dy = pullback(varying(d_hidden.astype(hidden.dtype), tuple(varying_axes(hidden))))
        inbox = _put(inbox, own_share(ends.axes, dy), _slot_on(ends, rank, slot, inbox), first)
        d_final = jax.tree.map(lambda total, new: total + new.astype(total.dtype), d_final, d_final_chunk)
        return inbox, d_head + scatter_head(ends.axes, d_head_chunk), d_final, loss + chunk_loss

    sums = buffers.ends[pipe]
    num_chunks = buffers.message.shape[0] // ends.chunk_tokens
    inbox, *added = _chunks(microbatch, num_chunks, body, (buffers.inbox, sums.head, sums.final, sums.loss))
    return _with_sums(buffers._replace(inbox=inbox), pipe, EndSums(sums.embedding, *added))


def run_head_loss(ends: Ends, buffers: Buffers, microbatch: Array, *, pipe: int, rank: int) -> Buffers:
    """The loss alone of the message of ``rank``, for evaluation."""

    def body(chunk: Array, loss: Array) -> Array:
        y, labels, _, head = _read_chunk(ends, buffers.message, chunk, microbatch, rank)
        hidden = ends.final(ends.weights["final"], y)
        return loss + cross_entropy_loss(
            head, hidden, labels, vocab_size=ends.vocab_size, axis=ends.axes.vocabulary
        )

    sums = buffers.ends[pipe]
    num_chunks = buffers.message.shape[0] // ends.chunk_tokens
    return _with_sums(buffers, pipe, sums._replace(loss=_chunks(microbatch, num_chunks, body, sums.loss)))


def _with_sums(buffers: Buffers, pipe: int, sums: EndSums) -> Buffers:
    return buffers._replace(ends=(*buffers.ends[:pipe], sums, *buffers.ends[pipe + 1 :]))


def _read_chunk(
    ends: Ends, message: Array, chunk: Array, microbatch: Array, rank: int
) -> tuple[Float[Array, "t d"], Int32[Array, " t"], Array, Float[Array, "n d"]]:
    """A chunk of the message of ``rank`` on all ranks, its labels, its first token, and the head."""
    head = ends.weights.get("head", ends.weights["embedding"])  # the embedding's where they are tied
    first, microbatch, message, head = tied(chunk, (chunk * ends.chunk_tokens, microbatch, message, head))
    y = broadcast(ends.axes, jax.lax.dynamic_slice_in_dim(message, first, ends.chunk_tokens), rank)
    labels = _in_shares(ends, ends.batch.labels, microbatch)
    labels = jax.lax.dynamic_slice_in_dim(labels, first, ends.chunk_tokens, axis=1).reshape(-1)
    # marked as varying, since the VJP of ``final`` would sum dy over the ranks otherwise
    y = varying(y, tuple(varying_axes(message)))
    return y, labels, first, gather_head(ends.axes, head)


def _tokens(ends: Ends, microbatch: Array) -> Int32[Array, " shares*t"]:
    """All of a microbatch, share after share, as ``broadcast`` puts them together."""
    return _in_shares(ends, ends.batch.tokens, microbatch).reshape(-1)


def _in_shares(ends: Ends, array: Int32[Array, "m b s"], microbatch: Array) -> Int32[Array, "shares t"]:
    of_microbatch = jax.lax.dynamic_index_in_dim(array, microbatch, keepdims=False)
    parts = of_microbatch.reshape(array.shape[1], ends.shares, -1)
    return jnp.moveaxis(parts, 1, 0).reshape(ends.shares, -1)


def _slot_on(ends: Ends, rank: int, slot: Array, inbox: Array) -> Array:
    """``slot`` on ``rank``, the trash slot on the others."""
    if ends.axes.ranks is None:
        return slot
    return jnp.where(jax.lax.axis_index(ends.axes.ranks) == rank, slot, inbox.shape[0] - 1)


def _put(inbox: Array, value: Float[Array, "t d"], slot: Array, first: Array | int = 0) -> Array:
    """The inbox with ``value`` in a slot, from token ``first`` on."""
    value = varying(value.astype(inbox.dtype), tuple(varying_axes(inbox)))
    return jax.lax.dynamic_update_slice(inbox, value[None], (slot, first, 0))


def _once(microbatch: Array, body: Callable, carry: Tree) -> Tree:
    return _chunks(microbatch, 1, body, carry)


def _chunks(microbatch: Array, num_chunks: int, body: Callable, carry: Tree) -> Tree:
    """``body`` for each chunk, or not at all if there is no microbatch."""
    return jax.lax.fori_loop(0, jnp.where(microbatch == NONE, 0, num_chunks), body, carry)
