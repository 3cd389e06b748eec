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

from jaxpipe.lowering.table import NONE, EndColumns
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

    first, last: of each pipe the rank of its first, and of its last stage.
    weights: ``embedding``, ``final`` and, unless tied, ``head``; the vocabulary's rows of this device.
    shares: into how many, along the sequence, a message is cut: with sequence parallelism ``tp``, else 1.
    scale: 1 / valid tokens of the global batch, or None where only the loss is wanted.
    axes: the mesh axes that take part.
    chunk_tokens: the head runs over so many tokens of each message at a time; divides those of a message.
    """

    first: tuple[int, ...]
    last: tuple[int, ...]
    final: Callable[[Tree, Array], Array]
    weights: Tree
    batch: Batch
    shares: int
    scale: Float[Array, ""] | None
    vocab_size: int
    axes: EndAxes
    chunk_tokens: int


def run_embed(ends: Ends, buffers: Buffers, row: EndColumns[Int32[Array, " pipes"]]) -> Buffers:
    """The embeddings of a microbatch into an inbox slot of the first rank."""

    def body(turn: _Turn, inbox: Array) -> Array:
        microbatch, slot = tied(turn, (row.embed[turn.pipe], row.embed_slot[turn.pipe]))
        table = tied(turn, ends.weights["embedding"])
        x = embeddings(ends.axes, table, _tokens(ends, microbatch))
        return _put(inbox, x, _slot_on(ends, _of_pipe(ends.first, turn), slot, inbox))

    return buffers._replace(inbox=_turns(row.embed, 1, body, buffers.inbox))


def run_unembed(ends: Ends, buffers: Buffers, row: EndColumns[Int32[Array, " pipes"]]) -> Buffers:
    """The first rank's message, d loss / d embeddings of a microbatch, into the embedding's gradient."""
    sums = buffers.ends

    def body(turn: _Turn, gradient: Array) -> Array:
        microbatch, message = tied(turn, (row.unembed[turn.pipe], buffers.message))
        dx = broadcast(ends.axes, message, _of_pipe(ends.first, turn))
        return with_rows_added(ends.axes, gradient, _tokens(ends, microbatch), dx, pipe=turn.pipe)

    return buffers._replace(ends=sums._replace(embedding=_turns(row.unembed, 1, body, sums.embedding)))


def run_head(ends: Ends, buffers: Buffers, row: EndColumns[Int32[Array, " pipes"]]) -> Buffers:
    """The last rank's message, the output of its stage, through ``final``, head and loss.

    Its gradient lands in an inbox slot of that rank.
    """
    assert ends.scale is not None, "only the loss is wanted: run_head_loss gives it"
    scale, sums = ends.scale, buffers.ends

    def body(turn: _Turn, carry: tuple[Array, Array, Tree, Array]) -> tuple[Array, Array, Tree, Array]:
        inbox, *added = carry
        y, labels, first, head = _read_chunk(ends, buffers.message, turn, row)
        slot = tied(turn, row.head_slot[turn.pipe])
        hidden, pullback = jax.vjp(ends.final, ends.weights["final"], y)
        loss, d_hidden, d_head = cross_entropy(
            head, hidden, labels, vocab_size=ends.vocab_size, scale=scale, axis=ends.axes.vocabulary
        )
        d_final, dy = pullback(varying(d_hidden.astype(hidden.dtype), tuple(varying_axes(hidden))))
        slot = _slot_on(ends, _of_pipe(ends.last, turn), slot, inbox)
        inbox = _put(inbox, own_share(ends.axes, dy), slot, first)
        return inbox, *_add(added, [scatter_head(ends.axes, d_head), d_final, loss], turn.pipe)

    carry = (buffers.inbox, sums.head, sums.final, sums.loss)
    inbox, *added = _turns(row.head, _num_chunks(ends, buffers), body, carry)
    return buffers._replace(inbox=inbox, ends=EndSums(sums.embedding, *added))


def run_head_loss(ends: Ends, buffers: Buffers, row: EndColumns[Int32[Array, " pipes"]]) -> Buffers:
    """The loss alone of the last rank's message, for evaluation."""

    def body(turn: _Turn, loss: Array) -> Array:
        y, labels, _, head = _read_chunk(ends, buffers.message, turn, row)
        hidden = ends.final(ends.weights["final"], y)
        new = cross_entropy_loss(head, hidden, labels, vocab_size=ends.vocab_size, axis=ends.axes.vocabulary)
        return _add(loss, new, turn.pipe)

    loss = _turns(row.head, _num_chunks(ends, buffers), body, buffers.ends.loss)
    return buffers._replace(ends=buffers.ends._replace(loss=loss))


class _Turn(NamedTuple):
    """One trip of a loop over what the pipes have for the same end; all change with its counter."""

    counter: Int32[Array, ""]
    pipe: Int32[Array, ""]
    chunk: Int32[Array, ""]


def _turns(microbatches: Int32[Array, " pipes"], num_chunks: int, body: Callable, carry: Tree) -> Tree:
    """``body`` for each chunk of each pipe that has a microbatch, pipe after pipe."""
    acts = microbatches != NONE

    def run(counter: Array, carry: Tree) -> Tree:
        pipe = jnp.argmax(jnp.cumsum(acts) > counter // num_chunks).astype(jnp.int32)
        return body(_Turn(counter, pipe, counter % num_chunks), carry)

    return jax.lax.fori_loop(0, num_chunks * jnp.sum(acts, dtype=jnp.int32), run, carry)


def _num_chunks(ends: Ends, buffers: Buffers) -> int:
    return buffers.message.shape[0] // ends.chunk_tokens


def _of_pipe(ranks: tuple[int, ...], turn: _Turn) -> Int32[Array, ""]:
    return jnp.asarray(ranks, jnp.int32)[turn.pipe]


def _add(sums: Tree, new: Tree, pipe: Array) -> Tree:
    """What a pipe has added up, with more of it."""

    def add(total: Array, more: Array) -> Array:
        own = jax.lax.dynamic_index_in_dim(total, pipe) + more[None].astype(total.dtype)
        return jax.lax.dynamic_update_index_in_dim(total, own, pipe, axis=0)

    return jax.tree.map(add, sums, new)


def _read_chunk(
    ends: Ends, message: Array, turn: _Turn, row: EndColumns[Int32[Array, " pipes"]]
) -> tuple[Float[Array, "t d"], Int32[Array, " t"], Array, Float[Array, "n d"]]:
    """A chunk of the last rank's message on all ranks, its labels, its first token, and the head."""
    head = ends.weights.get("head", ends.weights["embedding"])  # the embedding's where they are tied
    first, microbatch, message, head = tied(
        turn, (turn.chunk * ends.chunk_tokens, row.head[turn.pipe], message, head)
    )
    y = jax.lax.dynamic_slice_in_dim(message, first, ends.chunk_tokens)
    y = broadcast(ends.axes, y, _of_pipe(ends.last, turn))
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


def _slot_on(ends: Ends, rank: Array, slot: Array, inbox: Array) -> Array:
    """``slot`` on ``rank``, the trash slot on the others."""
    if ends.axes.ranks is None:
        return slot
    return jnp.where(jax.lax.axis_index(ends.axes.ranks) == rank, slot, inbox.shape[0] - 1)


def _put(inbox: Array, value: Float[Array, "t d"], slot: Array, first: Array | int = 0) -> Array:
    """The inbox with ``value`` in a slot, from token ``first`` on."""
    value = varying(value.astype(inbox.dtype), tuple(varying_axes(inbox)))
    return jax.lax.dynamic_update_slice(inbox, value[None], (slot, first, 0))
