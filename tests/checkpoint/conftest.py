"""A small state as the trainer hands it over: asymmetric shapes, three dtypes, some leaves sharded."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def make_mesh(pp: int, dp: int) -> Mesh:
    devices = np.array(jax.devices()[: pp * dp]).reshape(pp, dp)
    return Mesh(devices, ("pp", "dp"), axis_types=(AxisType.Auto,) * 2)


def make_state(mesh: Mesh, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)

    def put(shape: tuple[int, ...], dtype: Any, *axes: str) -> jax.Array:
        return jax.device_put(
            random.normal(size=shape).astype(dtype), NamedSharding(mesh, PartitionSpec(*axes))
        )

    def tree(dtype: Any) -> dict[str, Any]:
        return {
            "embedding": put((50, 6), dtype),
            "layers": {"query": put((8, 6, 10), dtype, "pp"), "norm": put((8, 6), dtype, "pp")},
        }

    count = jax.device_put(jnp.int32(seed), NamedSharding(mesh, PartitionSpec()))
    return {
        "params": tree("float32"),
        "adam": {"mu": tree("float32"), "nu": tree(jnp.bfloat16), "count": count},
    }


def template(state: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


@pytest.fixture
def state() -> dict[str, Any]:
    return make_state(make_mesh(4, 2))


@pytest.fixture
def state_on() -> Callable[..., dict[str, Any]]:
    """``state_on(pp, dp, seed)``: another state, on a mesh of its own."""
    return lambda pp, dp, seed=0: make_state(make_mesh(pp, dp), seed)


@pytest.fixture
def like() -> Callable[[Any], Any]:
    """``like(state)``: what to ask of ``restore``."""
    return template
