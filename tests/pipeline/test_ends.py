"""What all ranks do together takes nothing from a rank that has nothing to give."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import mlp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from programs import make_mesh

from jaxpipe.lowering.table import NONE, EndColumns
from jaxpipe.pipeline.buffers import Buffers, end_sums
from jaxpipe.pipeline.end_axes import EndAxes
from jaxpipe.pipeline.ends import Ends, run_head, run_unembed
from jaxpipe.pipeline.manual_axes import varying

NUM_RANKS, RANK, PIPE, VOCAB_SIZE = 4, 2, 1, 12
RANKS = (0, RANK)
"""The first rank of each pipe, which here is its last, too."""


def row(microbatch: int) -> EndColumns:
    """Both ends of one pipe meet a microbatch; there is none for the other pipe."""
    microbatches = jnp.full(2, NONE, jnp.int32).at[PIPE].set(microbatch)
    slots = jnp.ones(2, jnp.int32)
    return EndColumns(microbatches, slots, microbatches, slots, microbatches)


def on_every_rank(run: Callable[[Ends, Buffers], Buffers], garbage: float) -> tuple[np.ndarray, Buffers]:
    """Every rank's buffers after ``run``, where messages are ``garbage`` on all ranks but one."""
    params, batch = mlp.make_params(1, vocab_size=VOCAB_SIZE), mlp.make_batch(2, vocab_size=VOCAB_SIZE)
    message = np.random.default_rng(0).normal(size=(2 * mlp.SEQUENCE, mlp.HIDDEN)).astype(np.float32)
    ends_weights = {group: params[group] for group in ("embedding", "final", "head")}
    specs = {group: PartitionSpec() if group == "final" else PartitionSpec("pp") for group in ends_weights}

    def local(weights: dict) -> Buffers:
        weights = varying(weights, ("pp",))
        ends = Ends(
            first=RANKS,
            last=RANKS,
            final=mlp.CONTRACT.final,
            weights=weights,
            batch=varying(batch, ("pp",)),
            shares=1,
            scale=jnp.float32(1.0),
            vocab_size=VOCAB_SIZE,
            axes=EndAxes(ranks="pp", vocabulary=("pp",)),
            chunk_tokens=4,
        )
        is_mine = jax.lax.axis_index("pp") == RANK
        buffers = Buffers(
            inbox=jnp.full((3, *message.shape), garbage),
            message=jnp.where(is_mine, message, garbage),
            travelling=None,
            residuals=[],
            linear_inputs={},
            weight_inputs={},
            layer_inputs=None,
            layer_gradients={},
            ends=end_sums(weights, 2, has_backward=True),
        )
        buffers = run(ends, varying(buffers, ("pp",)))
        return jax.tree.map(lambda leaf: leaf[None], buffers)

    mapped = jax.shard_map(
        local, mesh=make_mesh(dp=1, pp=NUM_RANKS), in_specs=(specs,), out_specs=PartitionSpec("pp")
    )
    return message, jax.tree.map(np.asarray, jax.jit(mapped)(ends_weights))


def run_both(ends: Ends, buffers: Buffers) -> Buffers:
    return run_head(ends, run_unembed(ends, buffers, row(0)), row(0))


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e30])
def test_what_other_ranks_hold_does_not_matter(garbage: float) -> None:
    """It is not multiplied by zero, which would leave NaN."""
    got, expected = on_every_rank(run_both, garbage)[1], on_every_rank(run_both, 0.0)[1]
    np.testing.assert_array_equal(got.ends.loss[:, PIPE], expected.ends.loss[:, PIPE])
    assert np.all(got.ends.loss[:, PIPE] > 0)
    for leaf, wanted in zip(jax.tree.leaves(got.ends), jax.tree.leaves(expected.ends), strict=True):
        np.testing.assert_array_equal(leaf, wanted)
    np.testing.assert_array_equal(got.inbox[RANK, 1], expected.inbox[RANK, 1])


def test_the_gradient_lands_on_its_rank_in_its_slot_and_nowhere_else() -> None:
    """All other ranks write to their trash, the last slot."""
    inbox = on_every_rank(run_both, np.nan)[1].inbox
    written = ~np.isnan(inbox).all(axis=(2, 3))
    expected = np.zeros((NUM_RANKS, 3), bool)
    expected[:, 2] = True
    expected[RANK] = [False, True, False]
    np.testing.assert_array_equal(written, expected)


def test_without_a_microbatch_nothing_changes() -> None:
    def run(ends: Ends, buffers: Buffers) -> Buffers:
        return run_head(ends, run_unembed(ends, buffers, row(NONE)), row(NONE))

    buffers = on_every_rank(run, np.nan)[1]
    assert np.isnan(buffers.inbox).all()
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(buffers.ends))


def test_the_other_pipe_is_left_alone() -> None:
    buffers = on_every_rank(run_both, np.nan)[1]
    assert not any(np.any(leaf[:, 1 - PIPE]) for leaf in jax.tree.leaves(buffers.ends))


def test_the_message_is_added_to_the_rows_of_its_tokens() -> None:
    message, buffers = on_every_rank(lambda ends, buffers: run_unembed(ends, buffers, row(1)), np.nan)
    expected = np.zeros((VOCAB_SIZE, mlp.HIDDEN), np.float32)
    np.add.at(expected, np.asarray(mlp.make_batch(2, vocab_size=VOCAB_SIZE).tokens[1]).reshape(-1), message)
    got = buffers.ends.embedding[:, PIPE].reshape(VOCAB_SIZE, mlp.HIDDEN)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
