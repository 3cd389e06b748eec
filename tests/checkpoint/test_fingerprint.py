"""The fingerprint against a second one written out in plain integers, and what must change it."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpipe.checkpoint.fingerprint import examine

MASK = 0xFFFFFFFF


def mix(word: int) -> int:
    word = (word ^ (word >> 16)) * 0x85EBCA6B & MASK
    word = (word ^ (word >> 13)) * 0xC2B2AE35 & MASK
    return word ^ (word >> 16)


def written_out(array: np.ndarray) -> str:
    """The same in Python's integers, element by element."""
    bits = array.view(f"u{array.dtype.itemsize}") if array.dtype != bool else array.astype("u1")
    lanes = []
    for lane in (0x9E3779B9, 0x85EBCA77):
        total = 0
        for position in itertools.product(*map(range, array.shape)):
            place = mix(lane)
            for dim, index in enumerate(position):
                place ^= mix((index + lane * (2 * dim + 3)) & MASK)
            total += mix(int(bits[position]) ^ place)
        lanes.append(total & MASK)
    return "{:08x}{:08x}".format(*lanes)


def fingerprint(array) -> str:
    return examine({"it": jnp.asarray(array)})["it"].fingerprint


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    "array",
    [
        noise(3, 4, 5),
        noise(7, 1).astype(jnp.bfloat16),
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.array(5, np.int32),
        np.array([True, False]),
        np.array([0.0, -0.0, 1e-42, 3.4e38], np.float32),
    ],
    ids=lambda array: f"{array.dtype.name}{list(array.shape)}",
)
def test_it_is_what_the_docstring_says(array: np.ndarray):
    assert fingerprint(array) == written_out(array)


def test_every_single_bit_of_every_element_changes_it():
    array = noise(3, 2)
    seen = {fingerprint(array)}
    for index, bit in itertools.product(range(array.size), range(32)):
        bits = array.copy().view(np.uint32)
        bits.flat[index] ^= np.uint32(1 << bit)
        seen.add(fingerprint(bits.view(np.float32)))
    assert len(seen) == 1 + array.size * 32


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.swapaxes(0, 1),
        lambda x: x[::-1],
        lambda x: np.roll(x, 1, axis=1),
        lambda x: x.reshape(4, 4, 1),
        lambda x: x.reshape(2, 8),
        lambda x: -x,
        np.zeros_like,
        lambda x: np.stack([x[1], x[0], *x[2:]]),
    ],
)
def test_moving_values_changes_it(change):
    array = noise(4, 4)
    assert fingerprint(change(array)) != fingerprint(array)


def test_rows_of_zeros_are_not_all_the_same():
    assert len({fingerprint(np.zeros(shape, np.float32)) for shape in [(6,), (2, 3), (3, 2), (7,)]}) == 4


@pytest.mark.parametrize(
    "axes", [(), ("pp",), (None, "dp"), ("pp", "dp", "tp"), (("pp", "dp"),), (None, None, ("tp", "dp"))]
)
def test_it_does_not_depend_on_where_the_values_lie(axes):
    mesh = jax.make_mesh((2, 2, 2), ("pp", "dp", "tp"), axis_types=(AxisType.Auto,) * 3)
    array = noise(8, 6, 4)
    placed = jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes)))
    assert fingerprint(placed) == written_out(array)


def test_what_is_not_finite_is_counted():
    counts = {
        "none": (np.array([3.4e38, -0.0], np.float32), 0),
        "three": (np.array([np.nan, np.inf, -np.inf, 0], np.float32), 3),
        "bfloat16": (np.array([np.inf, 1]).astype(jnp.bfloat16), 1),
        "integers": (np.array([2**31 - 1], np.int32), 0),
    }
    found = examine({name: jnp.asarray(array) for name, (array, _) in counts.items()})
    assert {name: it.num_not_finite for name, it in found.items()} == {
        name: count for name, (_, count) in counts.items()
    }


def test_it_takes_no_memory_of_the_arrays_size():
    from jaxpipe.checkpoint.fingerprint import _examine

    array = jnp.zeros((64, 256, 64))
    memory = _examine.lower({"it": array}).compile().memory_analysis()
    assert memory.temp_size_in_bytes < array.nbytes / 50
