"""What the ends of the pipe exchange, over which mesh axes: messages, embeddings, shards of the vocabulary.

A message is ``[t, d]`` on one rank; with sequence parallelism each of the rank's devices has its share of the
tokens. Both ends work on all tokens of a microbatch, ``[shares t, d]``, share after share:

    broadcast    message of a rank -> all its tokens, on all devices
    embeddings   every device's rows of the vocabulary, added up -> each device's share of the tokens
    own_share    all tokens -> each device's share

ZeRO splits embedding and head along ``d`` over the copies of the pipeline, too. A head is put together before
it is used, and its gradient is added up and parted again. An embedding is not: instead the copies tell each
other their tokens, everyone looks up (or adds up) its slice of ``d`` for all of them, and one all-to-all
turns slices of ``d`` into tokens. That moves activations, not the table, and never holds it whole.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from jaxpipe.pipeline.vocabulary import add_rows, lookup


class EndAxes(NamedTuple):
    """Mesh axes; None or nothing where an axis has one device, or does not take part.

    ranks: of the ranks.
    vocabulary: over which the rows of the vocabulary are split, that of the ranks before ``tp``.
    sequence: over which the tokens of a message are split.
    weights: over which the hidden dimension of the vocabulary's weights is split (ZeRO 3).
    sums: the same of its accumulators (ZeRO 2 and 3).
    """

    ranks: str | None
    vocabulary: tuple[str, ...] | None
    sequence: str | None = None
    weights: str | None = None
    sums: str | None = None


def broadcast(
    axes: EndAxes, message: Float[Array, "t d"], rank: int | Int32[Array, ""]
) -> Float[Array, "shares*t d"]:
    """The message of ``rank`` on all devices; what the others hold may be anything, also NaN."""
    if axes.ranks is not None:
        is_mine = jax.lax.axis_index(axes.ranks) == rank
        message = jax.lax.psum(jnp.where(is_mine, message, 0), axes.ranks)
    if axes.sequence is not None:
        message = jax.lax.all_gather(message, axes.sequence, axis=0, tiled=True)
    return message


def own_share(axes: EndAxes, values: Float[Array, "shares*t d"]) -> Float[Array, "t d"]:
    """Of all tokens those of this device's messages."""
    if axes.sequence is None:
        return values
    size = values.shape[0] // jax.lax.axis_size(axes.sequence)
    return jax.lax.dynamic_slice_in_dim(values, jax.lax.axis_index(axes.sequence) * size, size)


def embeddings(
    axes: EndAxes, table: Float[Array, "n d"], tokens: Int32[Array, " shares*t"]
) -> Float[Array, "t d"]:
    """The embeddings of this device's share of the tokens, on all ranks."""
    if axes.weights is None:
        found = lookup(table, tokens, axis=axes.vocabulary)
    else:
        found = lookup(table, _of_all_copies(tokens, axes.weights), axis=axes.vocabulary)
        found = jax.lax.all_to_all(found, axes.weights, split_axis=0, concat_axis=1, tiled=True)
    return _add_up(axes, found)


def with_rows_added(
    axes: EndAxes,
    sums: Float[Array, "p n d"],
    tokens: Int32[Array, " t"],
    values: Float[Array, "t d"],
    *,
    pipe: Int32[Array, ""] | int,
) -> Float[Array, "p n d"]:
    """A pipe's ``sums`` with the value of each of all tokens added to its row, if this device holds it."""
    if axes.sums is not None:
        tokens = _of_all_copies(tokens, axes.sums)
        values = jax.lax.all_to_all(values, axes.sums, split_axis=1, concat_axis=0, tiled=True)
    return add_rows(sums, tokens, values, pipe=pipe, axis=axes.vocabulary)


def gather_head(axes: EndAxes, head: Float[Array, "n d"]) -> Float[Array, "n D"]:
    """The head's rows of this device, whole."""
    if axes.weights is None:
        return head
    shards = jax.lax.all_gather(head, axes.weights)
    return jnp.moveaxis(shards, 0, 1).reshape(head.shape[0], -1)


def scatter_head(axes: EndAxes, gradient: Float[Array, "n D"]) -> Float[Array, "n d"]:
    """This device's shard of the sum over the copies, where accumulators are shards."""
    if axes.sums is None:
        return gradient
    return jax.lax.psum_scatter(gradient, axes.sums, scatter_dimension=1, tiled=True)


def _of_all_copies(tokens: Int32[Array, " t"], axis: str) -> Int32[Array, " copies*t"]:
    return jax.lax.all_gather(tokens, axis, axis=0, tiled=True)


def _add_up(axes: EndAxes, found: Float[Array, "shares*t d"]) -> Float[Array, "t d"]:
    """The sum over the shards of the vocabulary, of this device's share of the tokens."""
    over = axes.vocabulary or ()
    if axes.sequence is not None:
        found = jax.lax.psum_scatter(found, axes.sequence, scatter_dimension=0, tiled=True)
        over = tuple(axis for axis in over if axis != axes.sequence)
    return jax.lax.psum(found, over) if over else found
