"""The arrays of a checkpoint one after the other, each whole on this host: for tools, not for training.

No more than one is held at a time (of each of two checkpoints that are compared). Everything runs on one CPU
device, whatever wrote the checkpoint.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from jaxpipe.checkpoint import array_files
from jaxpipe.checkpoint.fingerprint import Examined, examine
from jaxpipe.checkpoint.manifest import StoredArray
from jaxpipe.errors import CheckpointError, first_line


class Difference(NamedTuple):
    """How two arrays of one shape and dtype differ.

    num_different: elements whose bits differ. 0.0 and -0.0 do, a NaN and the same NaN do not.
    largest: the largest absolute difference; NaN if some element is not finite in one of them alone.
    relative: that, divided by the largest absolute value of either.
    rows: the indices along the first dimension (layers, tokens) of which some element differs.
    """

    num_different: int
    largest: float
    relative: float
    rows: tuple[int, ...]


def read_leaf(folder: Path, name: str, stored: StoredArray) -> np.ndarray:
    """One array of the checkpoint in ``folder``.

    Raises:
        CheckpointError: its files cannot be read.
    """
    return np.asarray(_read(folder, name, stored))


def examine_leaf(folder: Path, name: str, stored: StoredArray) -> Examined:
    """What is to be compared with the manifest; CheckpointError if the files cannot be read."""
    return examine({"it": _read(folder, name, stored)})["it"]


def difference(one: np.ndarray, other: np.ndarray) -> Difference:
    """How two arrays differ; they must have the same shape and dtype."""
    assert one.shape == other.shape, (one.shape, other.shape)
    assert one.dtype == other.dtype, (one.dtype, other.dtype)
    bits = f"u{one.dtype.itemsize}"
    differs = np.atleast_1d(np.ascontiguousarray(one).view(bits) != np.ascontiguousarray(other).view(bits))
    if not differs.any():
        return Difference(0, 0.0, 0.0, ())
    rows = np.flatnonzero(differs.reshape(len(differs), -1).any(axis=1))
    first, second = (np.atleast_1d(array)[differs].astype(np.float64) for array in (one, other))
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.max(np.abs(first - second)))
        size = float(max(np.max(np.abs(array.astype(np.float64))) for array in (one, other)))
    return Difference(int(differs.sum()), largest, largest / size if size else 0.0, tuple(map(int, rows)))


def _read(folder: Path, name: str, stored: StoredArray) -> jax.Array:
    place = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    like = jax.ShapeDtypeStruct(stored.shape, stored.dtype, sharding=place)
    try:
        return array_files.read(folder / array_files.FOLDER, {name: like})[name]
    except Exception as error:
        cause = first_line(error) if folder.exists() else "its run has deleted it meanwhile"
        raise CheckpointError(f"{name} of checkpoint {folder} cannot be read: {cause}") from error
