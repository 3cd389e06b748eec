"""A fingerprint of each array: 64 bits that depend on its values and shape, not on where they lie.

With w the bits of the element at position (i, j, ...), as an unsigned integer of 32 bits,

    fingerprint = sum over the elements of mix(w ^ place)  mod 2^32,     place = mix(s + i) ^ mix(t + j) ^ ...

twice, with different constants s, t, ... A sum of integers has no order, so each device adds up what it
holds, and any sharding over any mesh gives the same number, in one pass and without bringing anything to the
host. ``mix`` is the finalizer of MurmurHash3 (Appleby), a bijection: if one element changes, so does the
fingerprint, always; any other change goes unseen with a probability of 2^-64. It is a check against damage,
not against forgers.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

_LANES = (0x9E3779B9, 0x85EBCA77)
"""Where the constants of each lane start, and by how much they grow from one dimension to the next."""


class Examined(NamedTuple):
    """The fingerprint of an array in hexadecimal digits, and how many of its elements are not finite."""

    fingerprint: str
    num_not_finite: int


def compile_examination(arrays: Mapping[str, Array | jax.ShapeDtypeStruct]) -> jax.stages.Compiled:
    """The program that ``examine`` runs on arrays of these shapes, dtypes and shardings."""
    return _examine.lower(dict(arrays)).compile()


def examine(
    arrays: Mapping[str, Array], *, compiled: jax.stages.Compiled | None = None
) -> dict[str, Examined]:
    """Look at every element of each array, on the devices that hold it.

    Of several processes all must ask; each gets the same answer. Unless ``compiled`` is given, the program
    is compiled for arrays that are not like any before.
    """
    found = jax.device_get((compiled or _examine)(dict(arrays)))
    return {
        name: Examined("".join(f"{lane:08x}" for lane in lanes), int(count))
        for name, (*lanes, count) in found.items()
    }


@jax.jit
def _examine(arrays: dict[str, Array]) -> dict[str, tuple[UInt32[Array, ""], ...]]:
    return {name: _sums(array) for name, array in arrays.items()}


def _sums(array: Array) -> tuple[UInt32[Array, ""], ...]:
    """The lanes of the fingerprint, then the number of elements that are not finite.

    One reduction of all three: XLA for CPU forms the terms of a plain sum in memory first, which would be
    another array of that size each.
    """
    bits = _bits(array)
    terms = [_mix(bits ^ _places(bits.shape, lane)) for lane in _LANES]
    is_float = jnp.issubdtype(array.dtype, jnp.inexact)
    is_bad = ~jnp.isfinite(array) if is_float else jnp.zeros(array.shape, bool)
    return jax.lax.reduce(
        (*terms, is_bad.astype(jnp.uint32)),
        (np.uint32(0),) * 3,
        lambda sums, more: tuple(a + b for a, b in zip(sums, more, strict=True)),
        range(bits.ndim),
    )


def _bits(array: Array) -> UInt32[Array, "..."]:
    """The elements, of up to 4 bytes, as integers of 32 bits."""
    assert array.dtype.itemsize <= 4, array.dtype
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}").astype(jnp.uint32)


def _places(shape: tuple[int, ...], lane: int) -> UInt32[Array, "..."]:
    """A number for each position; dimensions of size 1 count, so that a shape is more than its size."""
    places = _mix(jnp.full((1,) * len(shape), lane, jnp.uint32))
    for dim, size in enumerate(shape):
        start = np.uint32(lane * (2 * dim + 3) % 2**32)
        row = _mix(jnp.arange(size, dtype=jnp.uint32) + start)
        places = places ^ row.reshape([-1 if other == dim else 1 for other in range(len(shape))])
    return places


def _mix(word: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    word = (word ^ (word >> 16)) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * np.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
