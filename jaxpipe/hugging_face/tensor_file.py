"""A safetensors file: which tensors it holds, and how one is begun.

::

    8 bytes                the length of the header, little-endian
    the header             JSON: {name: {"dtype", "shape", "data_offsets"}, "__metadata__": {text: text}}
    the data               tensor after tensor, in C order, little-endian; offsets count from its first byte

The format is small and does not change, and so it is read and written here: of a tensor in a file that is
mapped into memory any part can be taken, and any part filled in, while the rest stays on the disk. Format:
https://huggingface.co/docs/safetensors
"""

import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from jaxpipe.errors import InputError
from jaxpipe.hugging_face.json_text import parse_json

DTYPES: Mapping[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""The dtypes that a model's weights have, by their names in a header."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000
_ALIGNMENT = 8
_BLOCK_BYTES = 2**20
_METADATA = "__metadata__"


class Tensor(NamedTuple):
    """One tensor of a file; ``dtype`` by its name there, ``offset`` and ``num_bytes`` in the whole file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, which is as long as it says; their dtypes may be any.

    Raises:
        InputError: it cannot be read, or is no safetensors file, or not a whole one.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            text = file.read(length) if length <= min(size, _LONGEST_HEADER) else b""
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; correct that") from error
    start = _LENGTH_BYTES + length
    try:
        header = parse_json(text)
        tensors = {name: _tensor(path, entry, start) for name, entry in header.items() if name != _METADATA}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} must be a whole safetensors file, but its header cannot be read; copy it once more"
        ) from error
    end = max((tensor.offset + tensor.num_bytes for tensor in tensors.values()), default=start)
    if end != size:
        raise InputError(
            f"{path} must be as long as its header says, {end} bytes, but has {size}; copy it once more"
        )
    return tensors


def map_tensor(tensor: Tensor, *, writable: bool = False) -> np.ndarray:
    """The tensor in its file: only what is taken of it is read."""
    if tensor.num_bytes == 0:
        return np.empty(tensor.shape, DTYPES[tensor.dtype])
    return np.memmap(
        tensor.path,
        DTYPES[tensor.dtype],
        "r+" if writable else "r",
        offset=tensor.offset,
        shape=tensor.shape,
    )


def begin_file(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype) -> dict[str, Tensor]:
    """Write the header of a new file for tensors of these shapes, and have the disk keep room for the data.

    Raises:
        OSError: it cannot be written, or there is no room.
    """
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        file.flush()
        _reserve(file, end)
    return {
        name: _tensor(path, entry, _LENGTH_BYTES + len(text))
        for name, entry in header.items()
        if name != _METADATA
    }


def _reserve(file: BinaryIO, num_bytes: int) -> None:
    """Make the file so much longer, without holes: through a map of one a full disk would end the process."""
    if hasattr(os, "posix_fallocate"):  # not on macOS
        os.posix_fallocate(file.fileno(), file.tell(), max(num_bytes, 1))
        file.truncate(file.tell() + num_bytes)
        return
    for start in range(0, num_bytes, _BLOCK_BYTES):
        file.write(bytes(min(_BLOCK_BYTES, num_bytes - start)))


def _tensor(path: Path, entry: Mapping[str, Any], start: int) -> Tensor:
    """ValueError unless the entry agrees with itself."""
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    dtype = DTYPES.get(entry["dtype"])
    numbers = (begin, end, *shape)
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or end < begin:
        raise ValueError(f"{entry} is no place in a file")
    if dtype is not None and end - begin != prod(shape) * dtype.itemsize:
        raise ValueError(f"{entry} is longer or shorter than its shape")
    return Tensor(path, entry["dtype"], shape, start + begin, end - begin)
