"""Arrays over the devices of all processes, made from the host's and brought back to it.

Every process holds the same array on its host, and puts on its own devices what belongs there: nothing is
sent, and what is right for several processes is right for one.
"""

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array


def to_devices(array: np.ndarray | Array, sharding: NamedSharding) -> Array:
    """``array``, the same in all processes and whole in each, laid out by ``sharding``."""
    on_host = np.asarray(array)
    return jax.make_array_from_callback(on_host.shape, sharding, lambda index: on_host[index])


def from_parts(
    shape: tuple[int, ...], sharding: NamedSharding, read: Callable[[tuple[slice, ...]], np.ndarray]
) -> Array:
    """The array whose ``array[index]`` is ``read(index)``, laid out by ``sharding``.

    Each part that this process has on its devices is read once and put on those that have it; the host holds
    one part at a time.
    """
    devices_of: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index or (), shape, strict=True))
        devices_of.setdefault(bounds, []).append(device)
    shards: list[Array] = []
    for bounds, devices in devices_of.items():
        part = read(tuple(slice(*ends) for ends in bounds))
        shards += jax.block_until_ready([jax.device_put(part, device) for device in devices])
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def to_host(array: Array | np.ndarray, index: int | None = None) -> np.ndarray:
    """``array``, or ``array[index]``, whole; all processes must ask for the same ones in the same order.

    No process holds more than this one result beside its own shards.
    """
    if isinstance(array, np.ndarray) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array if index is None else array[index])
    assert isinstance(array.sharding, NamedSharding), array.sharding
    everywhere = NamedSharding(array.sharding.mesh, PartitionSpec())
    part = (array,) if index is None else (array, index)
    return np.asarray(jax.jit(_take, out_shardings=everywhere)(*part))


def _take(array: Array, index: Array | None = None) -> Array:
    return array if index is None else array[index]
