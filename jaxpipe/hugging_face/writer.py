"""A model in Hugging Face's form, written whole or not at all.

::

    DIR/config.json                             config_json.py
    DIR/model.safetensors                       if it fits into one file of the largest size
    DIR/model-00001-of-00003.safetensors ...    else these
    DIR/model.safetensors.index.json            and which of them holds which tensor

All is written into a folder beside DIR, which becomes DIR by one rename when the disk has everything. The
files are made first, as long as they will be, and then filled in through maps: whoever fills them may come
with any part of any tensor at any time, and needs no more memory than for that part.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxpipe.errors import InputError
from jaxpipe.hugging_face import config_json
from jaxpipe.hugging_face.reader import INDEX, SINGLE
from jaxpipe.hugging_face.tensor_file import DTYPES, Tensor, begin_file, map_tensor
from jaxpipe.hugging_face.tensor_names import Leaf, tensor_shapes
from jaxpipe.models.llama_config import LlamaConfig

DTYPE_NAMES: Mapping[str, np.dtype] = {str(dtype): dtype for dtype in DTYPES.values()}
"""``float32`` and the others that can be written."""


class Unfinished(NamedTuple):
    """A model that is being written; ``folder`` will be the model's, and other files may be put there."""

    folder: Path
    tensors: Mapping[str, Tensor]


@contextmanager
def whole_model(
    directory: Path,
    model: LlamaConfig,
    *,
    dtype: np.dtype,
    max_shard_bytes: int,
    token_ids: Mapping[str, int | None],
) -> Iterator[Unfinished]:
    """Where to write the parts of every tensor; when the context is left well, ``directory`` is the model.

    Raises:
        InputError: ``directory`` holds something already.
        OSError: it cannot be written, or there is no room.
    """
    directory = directory.resolve()
    refuse_taken(directory)
    folder = directory.with_name(f".{directory.name[:200]}.{os.getpid()}.unfinished")
    try:
        folder.mkdir(parents=True)
        yield Unfinished(folder, _begin_shards(folder, model, dtype=dtype, max_shard_bytes=max_shard_bytes))
        text = config_json.config_json(model, dtype=str(dtype), token_ids=token_ids)
        (folder / config_json.FILE_NAME).write_text(text, encoding="utf-8")
        for path in (*sorted(folder.rglob("*")), folder):
            _sync(path)
        folder.rename(directory)
        _sync(directory.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def refuse_taken(directory: Path) -> None:
    """Raise InputError unless there is nothing of that name, or an empty folder."""
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise InputError(f"{directory} must not exist yet, or be an empty folder; name another one")


def write_part(unfinished: Unfinished, leaf: Leaf, index: tuple[slice, ...], part: np.ndarray) -> None:
    """Put in ``leaf[index]`` of the canonical parameters.

    Raises:
        InputError: a value that is finite would not be so in the dtype of the file.
    """
    layers = range(*index[0].indices(leaf.shape[0])) if leaf.has_layers else range(1)
    for place, layer in enumerate(layers):
        name = leaf.tensor_name(layer)
        tensor = map_tensor(unfinished.tensors[name], writable=True)
        target = tensor.T if leaf.is_turned else tensor
        given, where = (part[place], index[1:]) if leaf.has_layers else (part, index)
        with np.errstate(over="ignore"):
            converted = given.astype(tensor.dtype, copy=False)
        if not np.isfinite(converted).all():
            raise InputError(
                f"{name} has values that are not finite as {tensor.dtype}; the largest is "
                f"{np.max(np.abs(given)):.3g}; use float32"
            )
        target[where] = converted


def _begin_shards(
    folder: Path, model: LlamaConfig, *, dtype: np.dtype, max_shard_bytes: int
) -> dict[str, Tensor]:
    """The files with their headers, and the index if there are several."""
    shapes = tensor_shapes(model)
    shards = list(_shards(shapes, dtype.itemsize, max_shard_bytes))
    if len(shards) == 1:
        return begin_file(folder / SINGLE, shapes, dtype)
    tensors: dict[str, Tensor] = {}
    for number, names in enumerate(shards, start=1):
        path = folder / f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors |= begin_file(path, {name: shapes[name] for name in names}, dtype)
    index = {
        "metadata": {"total_size": sum(tensor.num_bytes for tensor in tensors.values())},
        "weight_map": {name: tensor.path.name for name, tensor in sorted(tensors.items())},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return tensors


def _shards(shapes: Mapping[str, tuple[int, ...]], itemsize: int, largest: int) -> Iterator[list[str]]:
    """The names in each file: as many as fit, but at least one."""
    names: list[str] = []
    size = 0
    for name, shape in shapes.items():
        num_bytes = prod(shape) * itemsize
        if names and size + num_bytes > largest:
            yield names
            names, size = [], 0
        names.append(name)
        size += num_bytes
    yield names


def _sync(path: Path) -> None:
    """Wait until the disk has the file, or the names in the folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
