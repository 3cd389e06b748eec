"""The hash is what its documentation says, whatever holds the parameters."""

import hashlib
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpipe.training.params_hash import params_sha256

PARAMS = [
    ("embedding", np.array([[1.5, -0.0], [np.inf, 1e-45]], np.float32)),
    ("layers.0.norm", np.array([1.0, 2.0, 3.0], np.float32)),
    ("scale", np.float32(0.25).reshape(())),
]


def test_the_hash_can_be_recomputed_byte_by_byte():
    content = (
        b"embedding\x002,2\x00" + struct.pack("<4f", 1.5, -0.0, float("inf"), 1e-45)
        + b"layers.0.norm\x003\x00" + struct.pack("<3f", 1.0, 2.0, 3.0)
        + b"scale\x00\x00" + struct.pack("<f", 0.25)
    )  # fmt: skip
    assert params_sha256(PARAMS) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("pp", [1, 2, 8])
def test_sharding_does_not_matter(pp: int):
    mesh = Mesh(np.array(jax.devices()[:pp]), ("pp",), axis_types=(AxisType.Auto,))
    query = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    sharded = jax.device_put(query, NamedSharding(mesh, PartitionSpec("pp")))
    assert params_sha256([("query", sharded)]) == params_sha256([("query", query)])


def test_memory_order_does_not_matter():
    query = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert params_sha256([("query", np.asfortranarray(query))]) == params_sha256([("query", query)])


def changed() -> dict[str, list[tuple[str, np.ndarray]]]:
    first, second, third = PARAMS
    bit = first[1].copy()
    bit.view(np.uint32)[0, 0] ^= 1
    return {
        "one bit": [("embedding", bit), second, third],
        "sign of zero": [("embedding", np.abs(first[1])), second, third],
        "order": [second, first, third],
        "name": [("embeddings", first[1]), second, third],
        "shape": [("embedding", first[1].reshape(4, 1)), second, third],
        "one less": [first, second],
    }


@pytest.mark.parametrize("kind", list(changed()))
def test_any_difference_changes_the_hash(kind: str):
    assert params_sha256(changed()[kind]) != params_sha256(PARAMS)


def test_rounded_copies_are_refused():
    with pytest.raises(ValueError, match="query is bfloat16"):
        params_sha256([("query", jnp.ones(2, jnp.bfloat16))])
