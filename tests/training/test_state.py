"""The state in both layouts: to the bit, on any mesh."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama
from jaxpipe.pipeline import Layout, balanced_layers
from jaxpipe.schedules import looped
from jaxpipe.training.params_hash import params_sha256
from jaxpipe.training.state import (
    canonical_template,
    from_canonical,
    init_state,
    make_to_canonical,
    named_params,
)
from tests.training.test_optimizer import SETTINGS

CONFIG = LlamaConfig(
    vocab_size=261,
    hidden_size=12,
    intermediate_size=20,
    num_hidden_layers=5,
    num_attention_heads=3,
    num_key_value_heads=1,
)


def make_mesh(dp: int, pp: int) -> Mesh:
    devices = jax.devices()[: dp * pp]
    return jax.make_mesh((dp, pp, 1), ("dp", "pp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=devices)


def make_layout(pp: int, layers: tuple[int, ...] | None = None) -> Layout:
    return Layout(looped(pp), layers or balanced_layers(5, pp), CONFIG.vocab_size)


def new_state(pp: int, dp: int = 1, layers: tuple[int, ...] | None = None):
    layout, mesh = make_layout(pp, layers), make_mesh(dp, pp)
    state = init_state(lambda: init_llama(CONFIG, 3), SETTINGS, layout=layout, mesh=mesh)
    return state, layout, mesh


@pytest.mark.parametrize(
    ("dp", "pp", "layers"), [(1, 1, None), (2, 2, None), (1, 4, None), (1, 3, (1, 3, 1))]
)
def test_the_canonical_state_is_the_same_whatever_the_layout(dp, pp, layers):
    state, layout, mesh = new_state(pp, dp, layers)
    canonical = make_to_canonical(state, layout=layout, mesh=mesh)(state)
    expected = jax.jit(lambda: init_llama(CONFIG, 3))()
    chex.assert_trees_all_equal(jax.device_get(canonical["params"]), jax.device_get(expected))
    chex.assert_trees_all_equal_shapes_and_dtypes(
        canonical, canonical_template(lambda: init_llama(CONFIG, 3), SETTINGS, mesh)
    )


def test_a_state_goes_from_one_layout_to_another_and_back_to_the_bit():
    state, layout, mesh = new_state(4)
    state = state._replace(params=jax.tree.map(lambda leaf: leaf * 1.1, state.params))
    canonical = make_to_canonical(state, layout=layout, mesh=mesh)(state)
    other_layout, other_mesh = make_layout(2, (4, 1)), make_mesh(2, 2)
    moved = from_canonical(jax.device_get(canonical), layout=other_layout, mesh=other_mesh)
    there = jax.device_get(make_to_canonical(moved, layout=other_layout, mesh=other_mesh)(moved))
    back = from_canonical(there, layout=layout, mesh=mesh)
    chex.assert_trees_all_equal(jax.device_get(back), jax.device_get(state))


def test_no_device_holds_more_of_the_state_than_its_share():
    state, *_ = new_state(4)
    for leaf in jax.tree.leaves((state.params["layers"], state.moments.mu["embedding"])):
        assert leaf.addressable_shards[0].data.size * 4 == leaf.size


def test_names_are_in_model_order_and_complete():
    params = init_llama(CONFIG, 0)
    named = list(named_params(params))
    names = [name for name, _ in named]
    assert names[0] == "embedding"
    assert names[-2:] == ["final.scale", "head"]
    layers = [int(name.split(".")[1]) for name in names if name.startswith("layers.")]
    assert layers == sorted(layers)
    assert set(layers) == set(range(5))
    assert sum(array.size for _, array in named) == sum(leaf.size for leaf in jax.tree.leaves(params))


def test_the_hash_sees_one_bit_of_one_layer():
    params = jax.device_get(init_llama(CONFIG, 0))
    before = params_sha256(named_params(params))
    kernel = np.array(params["layers"]["kernels"]["mlp.down"]["down_proj"])
    kernel[4, 0, 0] = np.nextafter(kernel[4, 0, 0], np.float32(1))
    params["layers"]["kernels"]["mlp.down"]["down_proj"] = jnp.asarray(kernel)
    assert params_sha256(named_params(params)) != before
