"""The weights of a model in Hugging Face's form: found and checked by their headers, read part by part.

A folder holds ``model.safetensors``, or ``model.safetensors.index.json`` that names the file of each tensor.
The tensors must be those of the model: what is missing, not expected, of another shape or another dtype is
told, all at once and before a weight is read. Two things may be there beyond that, as Hugging Face's own
readers pass over them: ``rotary_emb.inv_freq`` of old Llamas, which follows from config.json, and in a tied
model an ``lm_head.weight`` that is the embedding.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxpipe.errors import InputError
from jaxpipe.hugging_face.json_text import parse_json, short
from jaxpipe.hugging_face.tensor_file import DTYPES, Tensor, map_tensor, read_header
from jaxpipe.hugging_face.tensor_names import EMBEDDING, HEAD, Leaf, tensor_shapes
from jaxpipe.models.llama_config import LlamaConfig

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_MAX_FAULTS = 20
_BLOCK_ROWS = 4096
_LONGEST_NAME = 255
"""Bytes; of a file, on all file systems."""

_FOLLOWS_FROM_CONFIG = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


class Weights(NamedTuple):
    """The tensors of one model, by Hugging Face's names, each in its file."""

    directory: Path
    tensors: Mapping[str, Tensor]


def open_weights(directory: Path, model: LlamaConfig) -> Weights:
    """The weights in ``directory``, which are exactly those of ``model``.

    Raises:
        InputError: they are not; the message names every tensor and file that is to blame.
    """
    found, faults = _find_tensors(directory)
    found = {name: tensor for name, tensor in found.items() if not _FOLLOWS_FROM_CONFIG.fullmatch(name)}
    wanted = tensor_shapes(model)
    if not faults:
        faults = list(_differences(found, wanted))
    if not faults and HEAD in found and HEAD not in wanted:
        faults = list(_head_faults(found))
    if faults:
        more = len(faults) - _MAX_FAULTS
        shown = faults[:_MAX_FAULTS] + [f"and {more} more"] * (more > 0)
        raise InputError(f"{directory} must hold the tensors of its config.json:\n  " + "\n  ".join(shown))
    return Weights(directory, {name: found[name] for name in wanted})


def read_part(weights: Weights, leaf: Leaf, index: tuple[slice, ...]) -> np.ndarray:
    """``leaf[index]`` of the canonical parameters, fp32; reads no more of the files than that.

    Beside the result, which is filled tensor by tensor, nothing is held.
    """
    if not leaf.has_layers:
        return np.array(map_tensor(weights.tensors[leaf.tensor])[index], np.float32)
    layers = range(*index[0].indices(leaf.shape[0]))
    sizes = (range(*part.indices(size)) for part, size in zip(index[1:], leaf.shape[1:], strict=True))
    part = np.empty((len(layers), *map(len, sizes)), np.float32)
    for place, layer in enumerate(layers):
        tensor = map_tensor(weights.tensors[leaf.tensor_name(layer)])
        part[place] = (tensor.T if leaf.is_turned else tensor)[index[1:]]
    return part


def not_finite(weights: Weights, leaf: Leaf) -> Iterator[str]:
    """The tensors of ``leaf`` that have values which are not finite."""
    for layer in range(leaf.shape[0] if leaf.has_layers else 1):
        tensor = map_tensor(weights.tensors[leaf.tensor_name(layer)])
        if not all(np.isfinite(tensor[rows]).all() for rows in _blocks(len(tensor))):
            yield leaf.tensor_name(layer)


def _find_tensors(directory: Path) -> tuple[dict[str, Tensor], list[str]]:
    """All tensors of the files, and what is wrong with the files."""
    single, index = directory / SINGLE, directory / INDEX
    if single.exists() and index.exists():
        return {}, [f"there are both {SINGLE} and {INDEX}; remove the one that is not meant"]
    if single.exists():
        try:
            return read_header(single), []
        except InputError as error:
            return {}, [str(error)]
    if index.exists():
        return _find_in_shards(directory)
    return {}, [
        f"there is neither {SINGLE} nor {INDEX}; where there are only *.bin of PyTorch, load the model "
        "with transformers and save it once more"
    ]


def _find_in_shards(directory: Path) -> tuple[dict[str, Tensor], list[str]]:
    path = directory / INDEX
    try:
        file_of = parse_json(path.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(file_of.values()))
        odd = [name for name in names if not _is_plain(name)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, [f'{INDEX} must be JSON with a "weight_map" of tensors and files; copy it once more']
    if odd:
        said = ", ".join(short(repr(name)) for name in odd[:3])
        return {}, [f"{INDEX} must name files that lie beside it, without folders; it names {said}"]
    tensors: dict[str, Tensor] = {}
    faults = []
    for name in names:
        if not (directory / name).exists():
            held = [tensor for tensor, file in file_of.items() if file == name]
            faults.append(f"{INDEX} names {name}, which is missing, with {_some(held)}; copy it too")
            continue
        try:
            found = read_header(directory / name)
        except InputError as error:
            faults.append(str(error))
            continue
        faults += _index_faults(name, set(found), {tensor for tensor in file_of if file_of[tensor] == name})
        tensors |= found
    return tensors, faults


def _is_plain(name: str) -> bool:
    """Whether this can be the name of a file in the same folder."""
    is_one = name == Path(name).name and name not in ("", ".", "..") and "\0" not in name
    return is_one and len(os.fsencode(name)) <= _LONGEST_NAME


def _index_faults(name: str, found: set[str], named: set[str]) -> Iterator[str]:
    """Where the index and a file that it names differ."""
    if lacking := sorted(named - found):
        yield f"{INDEX} says that {name} holds {_some(lacking)}, but it does not; copy both once more"
    if unnamed := sorted(found - named):
        yield f"{name} holds {_some(unnamed)}, of which {INDEX} knows nothing; copy both once more"


def _differences(found: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """A line for each tensor that is not as it should be."""
    for name, shape in wanted.items():
        tensor = found.get(name)
        if tensor is None:
            note = "; is tie_word_embeddings true?" if name == HEAD else ""
            yield f"{name} is missing, of shape {list(shape)}{note}"
        elif tensor.shape != shape:
            yield f"{name} has shape {list(tensor.shape)}, but config.json says {list(shape)}"
        elif tensor.dtype not in DTYPES:
            yield f"{name} has dtype {tensor.dtype}, which must be one of {', '.join(DTYPES)}"
    for name, tensor in found.items():
        if name not in wanted and name != HEAD:
            yield f"{name} is not expected, of shape {list(tensor.shape)}"


def _head_faults(found: Mapping[str, Tensor]) -> Iterator[str]:
    """Of the head that a tied model should not have: it may be the embedding once more."""
    embedding, head = (found[name] for name in (EMBEDDING, HEAD))
    if (embedding.dtype, embedding.shape) == (head.dtype, head.shape):
        one, other = (map_tensor(tensor) for tensor in (embedding, head))
        if all(one[rows].tobytes() == other[rows].tobytes() for rows in _blocks(len(one))):
            return
    yield (
        f"{HEAD} is not {EMBEDDING}, but config.json says tie_word_embeddings, which makes them one; "
        "correct tie_word_embeddings, or remove the tensor"
    )


def _blocks(num_rows: int) -> Iterator[slice]:
    """All rows, a few at a time."""
    return (slice(row, row + _BLOCK_ROWS) for row in range(0, num_rows, _BLOCK_ROWS))


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more tensors" if len(names) > 3 else "")
