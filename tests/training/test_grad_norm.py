"""The norm is the one of all gradients, and where the layers lie does not change a bit of it."""

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh

from jaxpipe.pipeline import Layout, Tree, to_stage_layout
from jaxpipe.pipeline.sharding import stage_shardings
from jaxpipe.schedules import looped, mirrored, v_shaped
from jaxpipe.training.grad_norm import make_global_norm

NUM_RANKS, NUM_LAYERS = 2, 8


def make_gradients(seed: int, *, tied: bool = False) -> Tree:
    """Canonical; layers, leaves and rows differ in size by orders of magnitude, so that order matters."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> jax.Array:
        scale = np.exp(2 * rng.normal(size=shape[0])).reshape(-1, *(1,) * (len(shape) - 1))
        return jnp.asarray(scale * rng.normal(size=shape), jnp.float32)

    layers = {
        "kernels": {"mlp": {"up": normal(NUM_LAYERS, 16, 20), "down": normal(NUM_LAYERS, 20, 16)}},
        "small": {"scale": normal(NUM_LAYERS, 16)},
    }
    gradients = {"embedding": normal(50, 16), "layers": layers, "final": {"scale": normal(16)}}
    return gradients if tied else gradients | {"head": normal(50, 16)}


@cache
def make_mesh(dp: int = 1) -> Mesh:
    devices = jax.devices()[: dp * NUM_RANKS]
    return jax.make_mesh((dp, NUM_RANKS), ("dp", "pp"), axis_types=(AxisType.Auto,) * 2, devices=devices)


LAYOUTS = [
    Layout(looped(NUM_RANKS), (4, 4), 50),
    Layout(looped(NUM_RANKS), (3, 5), 50),
    Layout(looped(NUM_RANKS, 2), (2, 2, 2, 2), 50),
    Layout(looped(NUM_RANKS, 4), (1,) * 8, 50),
    Layout(v_shaped(NUM_RANKS), (2, 2, 2, 2), 50),
    Layout(v_shaped(NUM_RANKS), (1, 4, 1, 2), 50),
    Layout(mirrored(NUM_RANKS), (3, 5), 50),
]


def norm_in(layout: Layout, gradients: Tree, *, dp: int = 1) -> np.ndarray:
    staged = to_stage_layout(gradients, layout)
    staged = jax.device_put(staged, stage_shardings(staged, make_mesh(dp), layout.sharding))
    return np.asarray(compiled_norm(layout, dp)(staged))


@cache
def compiled_norm(layout: Layout, dp: int) -> Callable[[Tree], jax.Array]:
    return jax.jit(make_global_norm(layout, make_mesh(dp)))


@pytest.mark.parametrize(
    ("layout", "tied"), [(layout, index % 2 == 0) for index, layout in enumerate(LAYOUTS)]
)
def test_the_layout_changes_no_bit(layout: Layout, tied: bool) -> None:
    for seed in range(4):
        gradients = make_gradients(seed, tied=tied)
        expected = norm_in(LAYOUTS[0], gradients)
        assert norm_in(layout, gradients, dp=2).tobytes() == expected.tobytes()
        # 1e-6: rounding of fp32 sums of a few hundred terms each
        np.testing.assert_allclose(expected, norm_in_float64(gradients), rtol=1e-6)


def norm_in_float64(gradients: Tree) -> float:
    squares = [np.square(np.asarray(leaf, np.float64)).sum() for leaf in jax.tree.leaves(gradients)]
    return float(np.sqrt(sum(squares)))


def test_padding_counts_for_nothing() -> None:
    layout = LAYOUTS[1]
    staged = to_stage_layout(make_gradients(0), layout)
    expected = compiled_norm(layout, 1)(staged)
    staged["layers"] = jax.tree.map(lambda leaf: leaf.at[0, 0, 3:].set(jnp.nan), staged["layers"])
    assert compiled_norm(layout, 1)(staged) == expected


def test_the_sum_over_leaves_as_they_lie_would_change_bits() -> None:
    """So the tests above can fail."""
    norm = jax.jit(optax.tree.norm)
    assert len({float(norm(to_stage_layout(make_gradients(0), layout))) for layout in LAYOUTS}) > 1
