"""Both ends of the pipe, split over the vocabulary, against a dense softmax and autodiff."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from programs import assert_leaves_close, make_mesh

from jaxpipe.pipeline.vocabulary import (
    add_rows,
    cross_entropy,
    cross_entropy_loss,
    lookup,
    padded_vocabulary,
)

VOCAB_SIZE, HIDDEN, NUM_TOKENS, SCALE = 50, 6, 104, 0.25

PADDED = 52
"""Four ranks hold 13 rows each, the last one 11 and two of padding."""

NUM_SHARDS = [1, 4]


class Ends(NamedTuple):
    """What the functions return, or how it lies on the ranks."""

    loss: Any
    loss_alone: Any
    d_hidden: Any
    d_head: Any
    looked_up: Any
    d_table: Any


@cache
def sharded_ends(num_shards: int) -> Callable[..., Ends]:
    """The four functions on so many ranks; one rank has no axis at all."""
    axis = "pp" if num_shards > 1 else None

    def run(head: jax.Array, hidden: jax.Array, tokens: jax.Array, labels: jax.Array) -> Ends:
        loss, d_hidden, d_head = cross_entropy(
            head, hidden, labels, vocab_size=VOCAB_SIZE, scale=jnp.float32(SCALE), axis=axis
        )
        loss_alone = cross_entropy_loss(head, hidden, labels, vocab_size=VOCAB_SIZE, axis=axis)
        looked_up = lookup(head, tokens, axis=axis)
        looked_up = looked_up if axis is None else jax.lax.psum(looked_up, axis)
        d_table = add_rows(jnp.zeros_like(head)[None], tokens, hidden, pipe=0, axis=axis)[0]
        if axis is not None:  # equal on all ranks; the mean says so to shard_map
            loss, loss_alone = (jax.lax.pmean(value, axis) for value in (loss, loss_alone))
        return Ends(loss, loss_alone, d_hidden, d_head, looked_up, d_table)

    if axis is None:
        return jax.jit(run)
    rows, same = PartitionSpec("pp"), PartitionSpec()
    return jax.jit(
        jax.shard_map(
            run,
            mesh=make_mesh(dp=1, pp=num_shards),
            in_specs=(rows, same, same, same),
            out_specs=Ends(same, same, same, rows, same, rows),
        )
    )


def dense_loss(head: jax.Array, hidden: jax.Array, labels: jax.Array) -> jax.Array:
    logits = jnp.einsum("td,nd->tn", hidden, head)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(labels, 0)[:, None], axis=1)[:, 0]
    return -jnp.sum(jnp.where(labels >= 0, chosen, 0.0))


def make_arguments(seed: int = 0) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Every id twice among tokens and labels, so on all shards; some labels masked, by different values."""
    rng = np.random.default_rng(seed)
    ids = np.concatenate([rng.permutation(VOCAB_SIZE), rng.permutation(VOCAB_SIZE), [0, 12, 13, 49]])
    labels = np.where(rng.random(NUM_TOKENS) < 0.3, rng.choice([-1, -100], NUM_TOKENS), ids[::-1])
    head, hidden = rng.normal(size=(VOCAB_SIZE, HIDDEN)), rng.normal(size=(NUM_TOKENS, HIDDEN))
    floats, integers = partial(jnp.asarray, dtype=jnp.float32), partial(jnp.asarray, dtype=jnp.int32)
    return floats(head), floats(hidden), integers(ids), integers(labels)


def pad(table: jax.Array, num_shards: int) -> jax.Array:
    rows = padded_vocabulary(VOCAB_SIZE, num_shards) - VOCAB_SIZE
    return jnp.pad(table, ((0, rows), (0, 0)), constant_values=7.0)  # its logits would count, if any did


def assert_is_dense(
    got: Ends, head: jax.Array, hidden: jax.Array, tokens: jax.Array, labels: jax.Array
) -> None:
    """To 1e-6 of the largest value: sums of fp32 in another order."""
    loss, (d_head, d_hidden) = jax.value_and_grad(dense_loss, argnums=(0, 1))(head, hidden, labels)
    d_table = jax.vjp(lambda table: table[tokens], head)[1](hidden)[0]
    expected = Ends(loss, loss, SCALE * d_hidden, SCALE * d_head, head[tokens], d_table)
    unpadded = got._replace(d_head=got.d_head[:VOCAB_SIZE], d_table=got.d_table[:VOCAB_SIZE])
    assert_leaves_close(unpadded._asdict(), expected._asdict(), tolerance=1e-6)


def test_the_vocabulary_is_padded_to_a_multiple() -> None:
    assert padded_vocabulary(VOCAB_SIZE, 4) == PADDED
    for vocab_size in range(1, 40):
        for num_shards in range(1, 9):
            padded = padded_vocabulary(vocab_size, num_shards)
            assert padded % num_shards == 0
            assert 0 <= padded - vocab_size < num_shards


@pytest.mark.parametrize("num_shards", NUM_SHARDS)
def test_loss_gradients_and_lookup_are_those_of_a_dense_softmax(num_shards: int) -> None:
    head, hidden, tokens, labels = make_arguments()
    got = sharded_ends(num_shards)(pad(head, num_shards), hidden, tokens, labels)
    assert_is_dense(got, head, hidden, tokens, labels)


@pytest.mark.parametrize("offset", [-30.0, 80.0])
@pytest.mark.parametrize("num_shards", NUM_SHARDS)
def test_large_logits_are_as_exact_as_small_ones(num_shards: int, offset: float) -> None:
    """All logits near -30 or +80: exp of them is next to nothing, or overflows. To 1e-4, since fp32 near 80
    comes in steps of 8e-6 and the loss is a difference of two such."""
    head, hidden, tokens, labels = make_arguments()
    head, hidden = head.at[:, 0].set(offset), hidden.at[:, 0].set(1.0)
    got = sharded_ends(num_shards)(pad(head, num_shards), hidden, tokens, labels)
    loss, (d_head, d_hidden) = jax.value_and_grad(dense_loss, argnums=(0, 1))(head, hidden, labels)
    np.testing.assert_allclose(got.loss, loss, rtol=1e-4)
    assert_leaves_close(
        {"head": got.d_head[:VOCAB_SIZE], "hidden": got.d_hidden},
        {"head": SCALE * d_head, "hidden": SCALE * d_hidden},
        tolerance=1e-4,
    )


@pytest.mark.parametrize("num_shards", NUM_SHARDS)
def test_one_hot_predictions_far_apart_stay_finite(num_shards: int) -> None:
    """Logits from -3000 to 3000: a right guess costs 0, a wrong one the difference; no gradient is NaN."""
    head = 100 * jnp.eye(VOCAB_SIZE, HIDDEN)
    hidden = jnp.tile(jnp.asarray([[30.0, -30.0, 0, 0, 0, 0]], jnp.float32), (2, 1))
    labels = jnp.asarray([0, 1], jnp.int32)
    got = sharded_ends(num_shards)(pad(head, num_shards).at[VOCAB_SIZE:].set(0), hidden, labels, labels)
    np.testing.assert_allclose(got.loss, 6000.0, rtol=1e-6)
    assert all(np.all(np.isfinite(leaf)) for leaf in got)


def test_padding_gets_no_probability_and_no_gradient() -> None:
    head, hidden, tokens, labels = make_arguments()
    got = sharded_ends(4)(pad(head, 4), hidden, tokens, labels)
    other = sharded_ends(4)(pad(head, 4).at[VOCAB_SIZE:].set(-1e4), hidden, tokens, labels)
    assert got.d_head.shape == (PADDED, HIDDEN)
    assert np.all(np.asarray(got.d_head[VOCAB_SIZE:]) == 0)
    assert np.all(np.asarray(got.d_table[VOCAB_SIZE:]) == 0)
    for mine, theirs in zip(got, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_every_id_has_its_own_gradient_on_every_shard() -> None:
    """Ids one by one: a token that is looked up on one rank and added on another would end in another row."""
    hidden = jnp.ones((NUM_TOKENS, HIDDEN))
    head = make_arguments()[0]
    labels = jnp.full(NUM_TOKENS, -1, jnp.int32)
    for token in range(VOCAB_SIZE):
        got = sharded_ends(4)(pad(head, 4), hidden, jnp.full(NUM_TOKENS, token, jnp.int32), labels)
        assert np.flatnonzero(np.asarray(got.d_table).any(axis=1)).tolist() == [token]
        np.testing.assert_array_equal(got.looked_up[0], head[token])


@pytest.mark.parametrize("num_shards", NUM_SHARDS)
def test_negative_labels_count_nothing(num_shards: int) -> None:
    head, hidden, tokens, _ = make_arguments()
    labels = jnp.full(NUM_TOKENS, -100, jnp.int32)
    got = sharded_ends(num_shards)(pad(head, num_shards), hidden, tokens, labels)
    assert got.loss == got.loss_alone == 0
    assert not np.any(got.d_hidden)
    assert not np.any(got.d_head)
