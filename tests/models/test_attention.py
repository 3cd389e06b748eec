"""Written-out attention is JAX's own, and no query sees a later position."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.models.attention import Implementation, attention_for, causal_attention

SHAPES = [(2, 7, 4, 4, 6), (1, 16, 6, 2, 5), (3, 5, 8, 1, 4), (1, 1, 2, 1, 3)]
"""Batch, sequence, heads, kv heads, head_dim."""


def make_qkv(
    shape: tuple[int, int, int, int, int], dtype: jnp.dtype = jnp.float32
) -> tuple[jax.Array, jax.Array, jax.Array]:
    batch, length, heads, kv_heads, size = shape
    rng = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(2 * rng.normal(size=(batch, length, n, size)), dtype) for n in (heads, kv_heads, kv_heads)
    )
    return q, k, v


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_einsum_attention_is_that_of_jax(shape: tuple[int, int, int, int, int]) -> None:
    """With gradients. To 1e-5: the same sums of fp32 in another order."""
    q, k, v = make_qkv(shape)

    @partial(jax.jit, static_argnums=0)
    def run(implementation: Implementation) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return causal_attention(q, k, v, implementation=implementation)

        mixed, pullback = jax.vjp(attend, q, k, v)
        return mixed, pullback(jnp.cos(mixed))

    for got, expected in zip(jax.tree.leaves(run("einsum")), jax.tree.leaves(run("xla")), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.max(np.abs(expected)))


def test_the_softmax_is_fp32_also_in_bf16() -> None:
    """Against fp32 attention of the same inputs: what is left is the rounding of weights and result."""
    q, k, v = make_qkv((2, 64, 4, 2, 8), jnp.bfloat16)
    wide = (array.astype(jnp.float32) for array in (q, k, v))
    got, expected = (
        causal_attention(q, k, v, implementation="einsum"),
        causal_attention(*wide, implementation="einsum"),
    )
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.astype(jnp.float32), expected, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("implementation", ["einsum", "xla"])
def test_a_query_sees_no_later_position(implementation: Implementation) -> None:
    q, k, v = make_qkv((2, 9, 4, 2, 6))
    before = causal_attention(q, k, v, implementation=implementation)
    after = causal_attention(q, k.at[:, 5:].add(9), v.at[:, 5:].add(9), implementation=implementation)
    np.testing.assert_array_equal(after[:, :5], before[:, :5])
    assert np.all(np.any(after[:, 5:] != before[:, 5:], axis=(2, 3)))


def test_a_group_of_query_heads_shares_its_kv_head() -> None:
    """Heads 0 to 2 read kv head 0, heads 3 to 5 kv head 1."""
    q, k, v = make_qkv((1, 8, 6, 2, 4))
    before = causal_attention(q, k, v, implementation="einsum")
    after = causal_attention(q, k, v.at[:, :, 1].add(1.0), implementation="einsum")
    np.testing.assert_array_equal(after[:, :, :3], before[:, :, :3])
    np.testing.assert_allclose(after[:, :, 3:], before[:, :, 3:] + 1.0, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("platform", "dtype", "expected"),
    [
        ("cpu", jnp.float32, "einsum"),
        ("cpu", jnp.bfloat16, "einsum"),
        ("gpu", jnp.bfloat16, "cudnn"),
        ("gpu", jnp.float16, "cudnn"),
        ("gpu", jnp.float32, "xla"),
        ("tpu", jnp.bfloat16, "xla"),
    ],
)
def test_each_backend_gets_what_suits_it(platform: str, dtype: jnp.dtype, expected: str) -> None:
    assert attention_for(platform, dtype) == expected
