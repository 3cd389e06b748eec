"""The norm is the one of all gradients, and where the layers lie does not change a bit of it."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh

from jaxpipe.pipeline import Layout, Tree, to_stage_layout
from jaxpipe.pipeline.sharding import stage_shardings
from jaxpipe.schedules import looped, mirrored, v_shaped
from jaxpipe.training.grad_norm import GradientNorm, make_global_norm, square_names
from jaxpipe.training.non_finite import non_finite_leaves
from jaxpipe.training.state import named_params
from tests.training.test_state import CONFIG, Where

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
    return np.asarray(compiled_norm(layout, dp)(staged).norm)


@cache
def compiled_norm(layout: Layout, dp: int) -> Callable[[Tree], GradientNorm]:
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
    assert np.all(np.isfinite(expected.squares))
    staged["layers"] = jax.tree.map(lambda leaf: leaf.at[0, 0, 3:].set(jnp.nan), staged["layers"])
    chex.assert_trees_all_equal(compiled_norm(layout, 1)(staged), expected)


def test_the_sum_over_leaves_as_they_lie_would_change_bits() -> None:
    """So the tests above can fail."""
    norm = jax.jit(optax.tree.norm)
    assert len({float(norm(to_stage_layout(make_gradients(0), layout))) for layout in LAYOUTS}) > 1


NAMED = [
    Where(looped(2), dp=2),
    Where(looped(2, 2), dp=2, tp=2, zero=3),
    Where(v_shaped(2), (1, 1, 2, 1), dp=2, zero=1, config=replace(CONFIG, tie_word_embeddings=True)),
    Where(mirrored(2), (2, 3), dp=2, tp=2, zero=2),
]


def names_of(where: Where) -> list[str]:
    return [name for name, _ in named_params(where.init())]


def spoiled(gradients: Tree, name: str, *, at: float, value: float) -> Tree:
    """A copy with ``value`` in one element of the leaf of that name; ``at`` from 0, the first, to 1."""
    copy = jax.tree.map(np.array, gradients)
    index = re.search(r"(?<=^layers)\.\d+", name)
    leaves = {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(copy)
    }
    array = leaves[name.replace(index.group(), "", 1)][int(index.group()[1:])] if index else leaves[name]
    array.reshape(-1)[round(at * (array.size - 1))] = value
    return copy


@pytest.mark.parametrize("where", NAMED, ids=["pp", "zero 3 of chunks", "tied and uneven", "two pipes"])
def test_a_gradient_that_is_not_finite_is_named_wherever_it_lies(where: Where) -> None:
    """One element of one leaf at a time: its first, one in the middle, its last."""
    layout, mesh = where.layout, where.mesh
    norm, gradients = jax.jit(make_global_norm(layout, mesh)), where.init()
    for number, name in enumerate(names_of(where)):
        at, value = (0, 0.5, 1)[number % 3], (np.nan, np.inf, 1e30)[number // 3 % 3]
        staged = to_stage_layout(spoiled(gradients, name, at=at, value=value), layout)
        staged = jax.device_put(staged, stage_shardings(staged, mesh, layout.sharding))
        found = norm(staged)
        assert not np.isfinite(found.norm), name
        assert non_finite_leaves(square_names(staged, layout), np.asarray(found.squares)) == [name]


@pytest.mark.parametrize("where", NAMED, ids=["pp", "zero 3 of chunks", "tied and uneven", "two pipes"])
def test_the_sums_are_those_of_the_leaves_that_they_are_named_after(where: Where) -> None:
    layout, gradients = where.layout, where.init()
    staged = to_stage_layout(gradients, layout)
    staged = jax.device_put(staged, stage_shardings(staged, where.mesh, layout.sharding))
    found = jax.jit(make_global_norm(layout, where.mesh))(staged)
    sums = dict.fromkeys(names_of(where), 0.0)
    for name, square in zip(square_names(staged, layout), np.asarray(found.squares), strict=True):
        sums[name] += float(square)
    for name, array in named_params(gradients):
        # 1e-6: rounding of fp32 sums of a few thousand terms each
        assert sums[name] == pytest.approx(np.square(array, dtype=np.float64).sum(), rel=1e-6), name


def test_the_vector_costs_no_collective() -> None:
    """With the norm alone as result, the compiled program has as many."""
    where = NAMED[1]
    norm = make_global_norm(where.layout, where.mesh)
    shapes = jax.eval_shape(lambda tree: to_stage_layout(tree, where.layout), jax.eval_shape(where.init))
    texts = [
        jax.jit(function, in_shardings=(stage_shardings(shapes, where.mesh, where.layout.sharding),))
        .lower(shapes)
        .compile()
        .as_text()
        for function in (norm, lambda tree: norm(tree).norm)
    ]
    counts = [text.count(" all-reduce(") for text in texts]
    assert counts[0] == counts[1] > 0
