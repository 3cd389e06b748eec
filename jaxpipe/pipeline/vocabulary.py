"""Both ends of the pipe, split over the vocabulary so that all ranks share their work.

The embedding and the head are ``[vocabulary, hidden]``, padded to a multiple of the number of shards: of
ranks, times ``tp``. Shard r holds rows ``r n .. (r+1) n - 1``. Padding gets no probability, no gradient, and
no token names it.

    lookup         every shard looks up the tokens whose rows it holds; the sum is the embedding
    cross_entropy  every shard computes its slice of the logits, the loss, and both gradients
    add_rows       every shard adds the gradients of the rows it holds

The logits exist only as [tokens, vocabulary / ranks], and the gradient is written out rather than left to
autodiff: with p = softmax(logits) it is ``(p - onehot(label)) scale``, so one pass gives loss and gradient
and three collectives serve both (Yeung et al. 2024, "Balancing Pipeline Parallelism with Vocabulary
Parallelism", section 4, reach the same place from the other side).

``axis`` is the mesh axis, or axes, of the shards; None without one. All is fp32 but the products' inputs.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

# einsum letters: t tokens, d hidden, n rows of the vocabulary of this shard

Axis = str | tuple[str, ...] | None

_NO_LOGIT = -1e30
"""The logit of padding: exp of it is 0, also on a shard that holds nothing else, where -inf gives NaN."""


def padded_vocabulary(vocab_size: int, num_shards: int) -> int:
    """The smallest multiple of ``num_shards`` that holds the vocabulary."""
    return -(-vocab_size // num_shards) * num_shards


def lookup(table: Float[Array, "n d"], tokens: Int32[Array, " t"], *, axis: Axis) -> Float[Array, "t d"]:
    """The embeddings of ``tokens`` whose rows this shard holds, of others 0; to be added up over ``axis``."""
    rows = tokens - _first_row(table.shape[0], axis)
    mine = (rows >= 0) & (rows < table.shape[0])
    return jnp.where(mine[:, None], table[jnp.clip(rows, 0, table.shape[0] - 1)], 0)


def add_rows(
    tables: Float[Array, "p n d"],
    tokens: Int32[Array, " t"],
    values: Float[Array, "t d"],
    *,
    pipe: Int32[Array, ""] | int,
    axis: Axis,
) -> Float[Array, "p n d"]:
    """``tables`` with the value of each token added to its row of a pipe's, if this shard holds it."""
    num_rows = tables.shape[1]
    rows = tokens - _first_row(num_rows, axis)
    rows = jnp.where(rows < 0, num_rows, rows)  # a negative row would count from the end
    return tables.at[pipe, rows].add(values.astype(tables.dtype), mode="drop")


def cross_entropy(
    head: Float[Array, "n d"],
    hidden: Float[Array, "t d"],
    labels: Int32[Array, " t"],
    *,
    vocab_size: int,
    scale: Float[Array, ""],
    axis: Axis,
) -> tuple[Float[Array, ""], Float[Array, "t d"], Float[Array, "n d"]]:
    """The summed loss over valid tokens (label >= 0), and ``scale`` times its gradients.

    ``hidden`` must be the same on all shards. Returns the loss, d loss / d hidden (summed over the shards)
    and d loss / d head (of this shard's rows).
    """
    loss, logits, log_normaliser, is_label = _loss(head, hidden, labels, vocab_size, axis)
    probability = jnp.exp(logits - log_normaliser[:, None])
    d_logits = jnp.where((labels >= 0)[:, None], probability - is_label.astype(jnp.float32), 0.0) * scale
    d_logits = d_logits.astype(head.dtype)
    d_hidden = jnp.einsum("tn,nd->td", d_logits, head, preferred_element_type=jnp.float32)
    d_head = jnp.einsum("tn,td->nd", d_logits, hidden, preferred_element_type=jnp.float32)
    return loss, d_hidden if axis is None else jax.lax.psum(d_hidden, axis), d_head


def cross_entropy_loss(
    head: Float[Array, "n d"],
    hidden: Float[Array, "t d"],
    labels: Int32[Array, " t"],
    *,
    vocab_size: int,
    axis: Axis,
) -> Float[Array, ""]:
    """The summed loss over valid tokens alone, for evaluation."""
    return _loss(head, hidden, labels, vocab_size, axis)[0]


def _loss(
    head: Array, hidden: Array, labels: Array, vocab_size: int, axis: Axis
) -> tuple[Float[Array, ""], Float[Array, "t n"], Float[Array, " t"], Array]:
    """The summed loss, this shard's logits, each token's log normaliser, and which logit is its label's."""
    valid = labels >= 0
    rows = jnp.where(valid, labels, 0) - _first_row(head.shape[0], axis)
    is_label = rows[:, None] == jnp.arange(head.shape[0])[None]
    logits = _logits(head, hidden, vocab_size, axis)
    log_normaliser, label_logit = _normalise(logits, rows, axis)
    return jnp.sum(jnp.where(valid, log_normaliser - label_logit, 0.0)), logits, log_normaliser, is_label


def _first_row(num_rows: int, axis: Axis) -> Int32[Array, ""] | int:
    return 0 if axis is None else jax.lax.axis_index(axis) * num_rows


def _logits(head: Array, hidden: Array, vocab_size: int, axis: Axis) -> Float[Array, "t n"]:
    logits = jnp.einsum("td,nd->tn", hidden, head, preferred_element_type=jnp.float32)
    if head.shape[0] * (1 if axis is None else jax.lax.axis_size(axis)) == vocab_size:
        return logits  # no padding: XLA would keep them with the mask and without it
    exists = _first_row(head.shape[0], axis) + jnp.arange(head.shape[0]) < vocab_size
    return jnp.where(exists[None], logits, _NO_LOGIT)


def _normalise(
    logits: Array, rows: Int32[Array, " t"], axis: Axis
) -> tuple[Float[Array, " t"], Float[Array, " t"]]:
    """log sum exp over the whole vocabulary, and the logit of the label in ``rows``, of each token."""
    num_rows = logits.shape[1]
    maximum = jnp.max(logits, axis=1)
    total = jnp.sum(jnp.exp(logits - maximum[:, None]), axis=1)
    label_logit = jnp.take_along_axis(logits, jnp.clip(rows, 0, num_rows - 1)[:, None], axis=1)[:, 0]
    label_logit = jnp.where((rows >= 0) & (rows < num_rows), label_logit, 0.0)
    if axis is None:
        return maximum + jnp.log(total), label_logit
    maxima, totals, label_logits = jax.lax.all_gather(jnp.stack([maximum, total, label_logit]), axis, axis=1)
    maximum = jnp.max(maxima, axis=0)
    total = jnp.sum(totals * jnp.exp(maxima - maximum[None]), axis=0)
    return maximum + jnp.log(total), jnp.sum(label_logits, axis=0)
