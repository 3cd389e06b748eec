"""An array of a checkpoint read in the parts in which it lies on the disk; loads no JAX.

Each part is what one device had when the checkpoint was saved, and is read once: for tools that turn whole
models into another form, and must not hold a leaf of all layers. Orbax writes through TensorStore (OCDBT with
Zarr 3 in it), so TensorStore alone reads it. ``find_damage`` says whether the files are what was written.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

from jaxpipe.checkpoint.manifest import StoredArray
from jaxpipe.errors import CheckpointError, first_line

_FOLDER = "arrays"
"""As in array_files.py, which would load JAX."""


def stored_parts(
    folder: Path, name: str, stored: StoredArray
) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """``(index, array[index])`` of each part of the array ``name`` of the checkpoint in ``folder``.

    Raises:
        CheckpointError: its files cannot be read, or hold another array than the manifest says.
    """
    import tensorstore

    base = {"driver": "file", "path": f"{(folder / _FOLDER).resolve()}/"}
    spec = {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}
    try:
        array = tensorstore.open(spec, read=True, open=True).result()
        found = (array.dtype.name, tuple(array.shape))
        if found != (stored.dtype, stored.shape):
            raise ValueError(f"it is {found}, but the manifest says {(stored.dtype, stored.shape)}")
        sizes = [size or 1 for size in array.chunk_layout.read_chunk.shape or ()]
        starts = product(*(range(0, length, size) for length, size in zip(array.shape, sizes, strict=True)))
        for start in starts:
            index = tuple(
                slice(begin, min(begin + size, length))
                for begin, size, length in zip(start, sizes, array.shape, strict=True)
            )
            yield index, array[index].read().result()
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{name} of checkpoint {folder} cannot be read: {first_line(error)}") from error
