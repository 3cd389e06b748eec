"""Arrays of one process that lie on several devices: there and back, whole and in parts."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpipe.training.global_arrays import from_parts, to_devices, to_host

ARRAY = np.arange(48, dtype=np.float32).reshape(4, 6, 2)


@pytest.mark.parametrize("spec", [(), ("pp",), (None, "dp"), ("pp", "dp"), (("dp", "pp"),)])
def test_an_array_comes_back_as_it_was_and_lies_where_device_put_puts_it(spec):
    mesh = jax.make_mesh((2, 2), ("dp", "pp"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    placed, expected = to_devices(ARRAY, sharding), jax.device_put(ARRAY, sharding)
    for shard, other in zip(placed.addressable_shards, expected.addressable_shards, strict=True):
        assert shard.device == other.device
        np.testing.assert_array_equal(shard.data, other.data)
    np.testing.assert_array_equal(to_host(placed), ARRAY)
    np.testing.assert_array_equal(to_host(placed, 3), ARRAY[3])


def test_an_array_on_the_host_stays_there():
    assert to_host(ARRAY) is ARRAY
    np.testing.assert_array_equal(to_host(ARRAY, 1), ARRAY[1])


@pytest.mark.parametrize(
    ("spec", "num_parts"), [((), 1), (("pp",), 2), ((None, "dp"), 2), (("pp", "dp"), 4), ((("dp", "pp"),), 4)]
)
def test_parts_are_read_once_each_and_lie_where_device_put_puts_them(spec, num_parts):
    mesh = jax.make_mesh((2, 2), ("dp", "pp"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    asked = []

    def read(index: tuple[slice, ...]) -> np.ndarray:
        asked.append(index)
        return ARRAY[index]

    placed, expected = from_parts(ARRAY.shape, sharding, read), jax.device_put(ARRAY, sharding)
    assert placed.sharding == expected.sharding
    for shard, other in zip(placed.addressable_shards, expected.addressable_shards, strict=True):
        assert shard.device == other.device
        np.testing.assert_array_equal(shard.data, other.data)
    assert len(asked) == num_parts
    assert sum(ARRAY[index].size for index in asked) == ARRAY.size
