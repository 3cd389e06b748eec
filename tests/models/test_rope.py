"""RoPE tables are exact at long positions whatever the compute dtype, and scaled as Llama 3.1 is."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.models.llama_config import LlamaConfig, RopeScaling
from jaxpipe.models.llama_stage import llama_constants
from jaxpipe.models.rope import rope_frequencies, rope_tables, rotate, tables_at

LLAMA_3_2_1B = LlamaConfig(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    rope_theta=500000.0,
    rope_scaling=RopeScaling(
        factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    ),
)


def exact_angles(head_dim: int, theta: float, positions: np.ndarray) -> np.ndarray:
    """Long doubles, pair by pair."""
    return np.array(
        [
            [p / np.longdouble(theta) ** (np.longdouble(i) / head_dim) for i in range(0, head_dim, 2)]
            for p in positions
        ]
    )


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_tables_are_exact_to_1e_6_at_every_length(theta: float) -> None:
    """Angles in fp32 would be off by 5e-4 at position 8191, and in bf16 positions above 256 fall together."""
    positions = np.array([0, 1, 255, 257, 3000, 8191, 15962, 15968, 16383])
    tables = rope_tables(rope_frequencies(64, theta=theta), 16384)
    angles = exact_angles(64, theta, positions)
    np.testing.assert_allclose(np.asarray(tables.cos)[positions], np.cos(angles), rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.asarray(tables.sin)[positions], np.sin(angles), rtol=0, atol=1e-6)


def test_tables_are_fp32_and_made_from_the_sizes_alone() -> None:
    tables = llama_constants(LLAMA_3_2_1B, 9)["rope"]
    assert tables.cos.dtype == tables.sin.dtype == jnp.float32
    assert tables.cos.shape == tables.sin.shape == (9, 32)
    np.testing.assert_array_equal(tables.cos[0], 1.0)
    np.testing.assert_array_equal(tables.sin[0], 0.0)


def test_llama_3_scaling_keeps_fast_pairs_blends_some_and_divides_slow_ones() -> None:
    plain = rope_frequencies(64, theta=500000.0)
    scaled = rope_frequencies(64, theta=500000.0, scaling=LLAMA_3_2_1B.rope_scaling)
    np.testing.assert_array_equal(scaled[:15], plain[:15])
    assert np.all((plain[15:18] / 32 < scaled[15:18]) & (scaled[15:18] < plain[15:18]))
    np.testing.assert_allclose(scaled[18:], plain[18:] / 32, rtol=1e-15)
    assert np.all(np.diff(scaled) < 0)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_factor_is_read_from_the_config(factor: float) -> None:
    scaling = RopeScaling(factor=factor)
    plain, scaled = (rope_frequencies(128, theta=5e5, scaling=chosen) for chosen in (None, scaling))
    np.testing.assert_allclose(plain[-1] / scaled[-1], factor, rtol=1e-15)


def test_linear_scaling_divides_all_frequencies() -> None:
    """As if positions were that much closer together: position 12 turns as 3 did."""
    plain = rope_tables(rope_frequencies(64, theta=1e4), 4)
    scaled = rope_tables(
        rope_frequencies(64, theta=1e4, scaling=RopeScaling(rope_type="linear", factor=4.0)), 13
    )
    np.testing.assert_array_equal(scaled.cos[12], plain.cos[3])
    np.testing.assert_array_equal(scaled.sin[12], plain.sin[3])


def test_no_scaling_and_the_default_are_the_same() -> None:
    np.testing.assert_array_equal(
        rope_frequencies(64, theta=1e4, scaling=RopeScaling(rope_type="default", factor=32.0)),
        rope_frequencies(64, theta=1e4),
    )


def test_rotation_turns_element_i_with_element_i_plus_half() -> None:
    tables = rope_tables(np.array([0.5, 0.25]), 3)
    x = jnp.asarray([1.0, 0, 0, 0]).reshape(1, 1, 1, 4) * jnp.ones((1, 3, 1, 1))
    expected = [[np.cos(0.5 * p), 0, np.sin(0.5 * p), 0] for p in range(3)]
    np.testing.assert_allclose(rotate(x, tables)[0, :, 0], expected, atol=1e-7)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 1e-2)])
def test_scores_depend_on_relative_distance_only(dtype: jnp.dtype, tolerance: float) -> None:
    """A query and a key 100 apart, at positions up to 8191: rounding of q and k is left (2^-9 in bf16)."""
    rng = np.random.default_rng(0)
    tables = llama_constants(LLAMA_3_2_1B, 8192)["rope"]
    q, k = (jnp.asarray(np.tile(rng.normal(size=(1, 1, 1, 64)), (1, 8192, 1, 1)), dtype) for _ in range(2))
    turned_q, turned_k = (np.asarray(rotate(x, tables)[0, :, 0].astype(jnp.float32)) for x in (q, k))
    scores = np.sum(turned_q[100:] * turned_k[:-100], axis=1)
    size = np.linalg.norm(turned_q[0]) * np.linalg.norm(turned_k[0])
    assert rotate(q, tables).dtype == dtype
    assert np.max(np.abs(scores - scores[0])) < tolerance * size


def test_each_sequence_may_have_positions_of_its_own() -> None:
    """Each position is turned as it would be in a sequence of its own, to the bit."""
    tables = rope_tables(rope_frequencies(6, theta=100.0), 8)
    positions = np.array([[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]])
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3, 6)), jnp.float32)
    turned = rotate(x, tables_at(tables, jnp.asarray(positions)))
    for row, position in np.ndindex(2, 5):
        alone = jnp.zeros((1, 8, 3, 6)).at[0, positions[row, position]].set(x[row, position])
        np.testing.assert_array_equal(
            turned[row, position], rotate(alone, tables)[0, positions[row, position]]
        )
