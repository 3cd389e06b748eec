"""The state in both layouts: to the bit, on any mesh, and without a device that sees all of it."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_contract
from jaxpipe.pipeline import Layout, Sharding, Tree, balanced_layers, to_canonical_layout, to_stage_layout
from jaxpipe.schedules import Placement, looped, v_shaped
from jaxpipe.training.optimizer import init_moments
from jaxpipe.training.params_hash import params_sha256
from jaxpipe.training.state import (
    TrainState,
    canonical_template,
    from_canonical,
    init_state,
    make_from_canonical,
    make_to_canonical,
    named_params,
    state_shardings,
)
from tests.training.test_optimizer import SETTINGS

CONFIG = LlamaConfig(
    vocab_size=261,
    hidden_size=16,
    intermediate_size=20,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
)


class Where(NamedTuple):
    """A mesh, and where the layers lie on it; ``layers`` None: as even as can be."""

    placement: Placement
    layers: tuple[int, ...] | None = None
    dp: int = 1
    tp: int = 1
    zero: int = 0
    config: LlamaConfig = CONFIG

    @property
    def layout(self) -> Layout:
        sharding = Sharding(tp=self.tp, zero=self.zero, splits=llama_contract(self.config, "einsum").splits)
        layers = self.layers or balanced_layers(self.config.num_hidden_layers, self.placement.num_stages)
        return Layout(self.placement, layers, self.config.vocab_size, sharding)

    @property
    def mesh(self) -> Mesh:
        """One without the axis ``tp`` where it has one device."""
        shape = {"dp": self.dp, "pp": self.placement.num_ranks} | ({"tp": self.tp} if self.tp > 1 else {})
        devices = jax.devices()[: math.prod(shape.values())]
        return jax.make_mesh(
            tuple(shape.values()), tuple(shape), axis_types=(AxisType.Auto,) * len(shape), devices=devices
        )

    def init(self) -> Tree:
        return init_llama(self.config, 3)

    def new_state(self) -> TrainState:
        return init_state(self.init, SETTINGS, layout=self.layout, mesh=self.mesh)

    def template(self) -> Tree:
        return canonical_template(self.init, SETTINGS, layout=self.layout, mesh=self.mesh)

    def state_template(self) -> TrainState:
        """Shapes and shardings of the state."""

        def init() -> TrainState:
            params = to_stage_layout(self.init(), self.layout)
            return TrainState(params, init_moments(SETTINGS, params))

        shapes = jax.eval_shape(init)
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            shapes,
            state_shardings(shapes, self.mesh, self.layout.sharding),
        )


UNDIVIDED = replace(CONFIG, hidden_size=12, num_attention_heads=3, num_key_value_heads=1)
"""With two pipelines, two ranks and tp 2, the exchange of the vocabulary would cut 6 features in 4."""

EVERYWHERE = [
    Where(looped(1)),
    Where(looped(4)),
    Where(looped(2), dp=2, zero=1),
    Where(looped(3), (1, 3, 1), config=UNDIVIDED),
    Where(looped(2, 2), (1, 2, 1, 1)),
    Where(looped(2, 2), (1, 2, 1, 1), dp=2, tp=2),
    Where(looped(2), (4, 1), dp=2, tp=2, zero=1),
    Where(v_shaped(2), (1, 1, 1, 2), dp=2, tp=2, zero=3),
    Where(v_shaped(2), (2, 1, 1, 1), tp=2, dp=2, zero=1, config=UNDIVIDED),
    Where(v_shaped(2), (2, 1, 1, 1), dp=4, zero=3),
    Where(looped(1, 2), (2, 3), tp=4),
]


@pytest.mark.parametrize("where", EVERYWHERE)
def test_a_new_state_is_the_same_wherever_it_lies(where: Where) -> None:
    state = where.new_state()
    canonical = make_to_canonical(state, layout=where.layout, mesh=where.mesh)(state)
    chex.assert_trees_all_equal(jax.device_get(canonical["params"]), jax.device_get(jax.jit(where.init)()))


@pytest.mark.parametrize("where", EVERYWHERE)
def test_conversion_moves_every_value_to_its_place_and_back(where: Where) -> None:
    rng, template = np.random.default_rng(0), where.template()
    canonical = jax.tree.map(lambda leaf: np.asarray(rng.normal(size=leaf.shape), leaf.dtype), template)
    state = from_canonical(canonical, layout=where.layout, mesh=where.mesh)
    assert jax.tree.map(lambda leaf: leaf.sharding, state) == jax.tree.map(
        lambda leaf: leaf.sharding, where.state_template()
    )
    params, moments = jax.device_get(state)
    for name, staged in {"params": params, "mu": moments.mu, "nu": moments.nu}.items():
        chex.assert_trees_all_equal(staged, jax.device_get(to_stage_layout(canonical[name], where.layout)))
        there = jax.device_get(to_canonical_layout(staged, where.layout))
        chex.assert_trees_all_equal(there, canonical[name])
    back = make_to_canonical(state, layout=where.layout, mesh=where.mesh)(state)
    chex.assert_trees_all_equal(jax.device_get(back), canonical)
    # what a checkpoint is restored to is what both directions use: nothing is moved twice
    assert all(
        leaf.sharding.is_equivalent_to(wanted.sharding, leaf.ndim)
        for leaf, wanted in zip(jax.tree.leaves(back), jax.tree.leaves(template), strict=True)
    )


def test_a_state_goes_from_one_layout_to_another_and_back_to_the_bit() -> None:
    one, other = Where(looped(4)), Where(looped(2), (4, 1), dp=2)
    state = one.new_state()
    state = state._replace(params=jax.tree.map(lambda leaf: leaf * 1.1, state.params))
    canonical = make_to_canonical(state, layout=one.layout, mesh=one.mesh)(state)
    moved = from_canonical(jax.device_get(canonical), layout=other.layout, mesh=other.mesh)
    there = jax.device_get(make_to_canonical(moved, layout=other.layout, mesh=other.mesh)(moved))
    back = from_canonical(there, layout=one.layout, mesh=one.mesh)
    chex.assert_trees_all_equal(jax.device_get(back), jax.device_get(state))


def test_no_device_holds_more_of_the_state_than_its_share() -> None:
    where = Where(looped(4))
    state = where.new_state()
    canonical = make_to_canonical(state, layout=where.layout, mesh=where.mesh)(state)
    shared = [state.params["layers"], state.moments.mu["embedding"]]
    shared += [canonical["params"]["layers"], canonical["mu"]["embedding"]]
    for leaf in jax.tree.leaves(shared):
        assert leaf.addressable_shards[0].data.size * 4 == leaf.size


@pytest.mark.parametrize(
    "where",
    [
        Where(looped(4, 2), (2,) * 8),
        Where(v_shaped(4), (2,) * 8, dp=2, zero=1),
        Where(looped(4), (3, 5, 5, 3)),
        Where(looped(2, 2), (3, 5, 5, 3), dp=2, tp=2, zero=3),
    ],
)
def test_conversion_needs_no_more_memory_than_the_state(where: Where) -> None:
    where = where._replace(config=replace(CONFIG, hidden_size=64, intermediate_size=96, num_hidden_layers=16))
    state, canonical = where.state_template(), where.template()
    shares = [math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(state)]
    share = 4 * sum(shares)  # bytes of fp32
    there = make_to_canonical(state, layout=where.layout, mesh=where.mesh).lower(state)
    back = make_from_canonical(canonical, layout=where.layout, mesh=where.mesh).lower(canonical)
    for lowered in (there, back):
        # automatic partitioning takes 2.8 to 5.3 times the share, the exchange at most what it moves
        assert lowered.compile().memory_analysis().temp_size_in_bytes <= 1.5 * share


def convert_there_and_back() -> None:
    """What a run over all three axes converts; see the test below."""
    where = Where(looped(2), (2, 3), dp=2, tp=2)
    state = where.new_state()
    canonical = make_to_canonical(state, layout=where.layout, mesh=where.mesh)(state)
    jax.block_until_ready(from_canonical(canonical, layout=where.layout, mesh=where.mesh))


def test_the_compiler_replicates_nothing_to_convert() -> None:
    """It warns when it does; in a process of its own, as programs from the cache warn nobody."""
    command = [sys.executable, "-c", "from tests.training.test_state import *; convert_there_and_back()"]
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "full rematerialization" not in done.stderr


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
