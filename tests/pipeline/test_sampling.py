"""Which token is drawn: against the definitions, written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.pipeline.sampling import Sampling, next_tokens, nucleus

NUM_TOKENS = 12


def brute_nucleus(logits: np.ndarray, top_p: float) -> set[int]:
    """The most probable tokens one after the other, until they add up to ``top_p``."""
    probabilities = np.exp(np.float64(logits) - logits.max())
    probabilities /= probabilities.sum()
    kept: set[int] = set()
    for token in np.argsort(-probabilities, kind="stable"):
        kept.add(int(token))
        if probabilities[list(kept)].sum() >= top_p:
            break
    return kept


def draw(logits: np.ndarray, sampling: Sampling, *, seed: int = 0, position: int = 3) -> np.ndarray:
    return np.asarray(
        next_tokens(jnp.asarray(logits), sampling, seed=jnp.uint32(seed), position=jnp.int32(position))
    )


@settings(deadline=None, max_examples=50)
@given(st.permutations(range(NUM_TOKENS)), st.floats(0.3, 3.0), st.floats(0.01, 0.99))
def test_the_nucleus_is_the_smallest_set_of_most_probable_tokens(order, spread, top_p) -> None:
    """Away from the borders: within 1e-5 of one, fp32 may well decide otherwise than float64."""
    logits = np.float32(spread * np.array(order) / 3)
    if brute_nucleus(logits, top_p - 1e-5) != brute_nucleus(logits, top_p + 1e-5):
        return
    kept = np.isfinite(np.asarray(nucleus(jnp.asarray(logits[None]), top_p)))[0]
    assert set(np.flatnonzero(kept)) == brute_nucleus(logits, top_p)


def test_the_most_probable_token_always_stays_and_with_one_all_do() -> None:
    logits = np.float32([[0.0, 9.0, -30.0, 8.9]])
    assert np.flatnonzero(np.isfinite(nucleus(jnp.asarray(logits), 1e-9))).tolist() == [1]
    drawn = {int(draw(logits * 0, Sampling(1.0, 1.0), seed=seed)[0]) for seed in range(60)}
    assert drawn == {0, 1, 2, 3}


def test_tokens_as_probable_as_the_last_that_stays_do_stay() -> None:
    kept = np.isfinite(nucleus(jnp.zeros((1, 5)), 0.3))
    assert kept.all()


def test_temperature_zero_takes_the_most_probable_token_and_a_tiny_one_does_too() -> None:
    logits = np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)
    for temperature in (0.0, 1e-30, 1e-38, 1e-46, 5e-324):
        np.testing.assert_array_equal(draw(logits, Sampling(temperature)), logits.argmax(-1))


def test_tokens_come_as_often_as_temperature_and_nucleus_say() -> None:
    """4000 draws: a share has a standard deviation below 0.008, and 0.04 is five of them."""
    logits = np.float32([1.0, 0.0, 2.0, -1.0])
    sampling = Sampling(temperature=0.7, top_p=0.9)
    kept = sorted(brute_nucleus(logits / 0.7, 0.9))
    expected = np.zeros(4)
    expected[kept] = np.exp(logits[kept] / 0.7) / np.exp(logits[kept] / 0.7).sum()
    rows = jnp.asarray(np.tile(logits, (4000, 1)))
    found = np.bincount(np.asarray(draw(rows, sampling)), minlength=4) / 4000
    np.testing.assert_allclose(found, expected, atol=0.04)
    assert found[[token for token in range(4) if token not in kept]].sum() == 0


def test_tokens_that_stand_for_nothing_are_never_drawn() -> None:
    logits = np.float32([[0.0, 0.0, 50.0]])
    for temperature in (0.0, 1.0):
        sampling = Sampling(temperature, num_ids=2)
        assert {int(draw(logits, sampling, seed=seed)[0]) for seed in range(20)} <= {0, 1}


@pytest.mark.parametrize("what", ["seed", "position"])
def test_a_draw_depends_on_seed_position_and_number_of_the_sample_alone(what: str) -> None:
    logits = np.zeros((3, 1000), np.float32)
    tokens = draw(logits, Sampling(1.0))
    np.testing.assert_array_equal(draw(logits[:2], Sampling(1.0)), tokens[:2])
    assert len(set(tokens.tolist())) == 3
    assert np.all(draw(logits, Sampling(1.0), **{what: 77}) != tokens)
    np.testing.assert_array_equal(jax.jit(lambda it: draw_traced(it))(logits), tokens)


def draw_traced(logits: jax.Array) -> jax.Array:
    return next_tokens(logits, Sampling(1.0), seed=jnp.uint32(0), position=jnp.int32(3))
