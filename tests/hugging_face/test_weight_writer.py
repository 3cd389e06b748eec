"""A model is written whole or not at all, in files that the library safetensors reads."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors import safe_open
from weight_files import MODEL, make_tensors

from jaxpipe.errors import InputError
from jaxpipe.hugging_face import writer
from jaxpipe.hugging_face.tensor_names import Leaf, leaves_of
from jaxpipe.hugging_face.writer import DTYPE_NAMES, Unfinished, whole_model, write_part


def canonical(leaf: Leaf, tensors: dict[str, np.ndarray]) -> np.ndarray:
    """The leaf, put together by hand."""
    if not leaf.has_layers:
        return tensors[leaf.tensor]
    rows = [tensors[f"model.layers.{layer}.{leaf.tensor}"] for layer in range(3)]
    return np.stack([row.T for row in rows])


def halves(size: int) -> list[slice]:
    return [slice(0, size // 2), slice(size // 2, size)]


def fill(unfinished: Unfinished, tensors: dict[str, np.ndarray]) -> None:
    """In pieces that cut the layers and the features, as devices have them."""
    for leaf in leaves_of(MODEL):
        array = canonical(leaf, tensors)
        for rows in halves(array.shape[0]):
            for columns in halves(array.shape[-1]):
                index = (*(rows,), *(slice(0, size) for size in array.shape[1:-1]), columns)
                index = index if array.ndim > 1 else (rows,)
                write_part(unfinished, leaf, index, array[index])


def write(
    directory: Path, tensors: dict[str, np.ndarray], dtype: str = "float32", largest: int = 10**9
) -> None:
    with whole_model(
        directory, MODEL, dtype=DTYPE_NAMES[dtype], max_shard_bytes=largest, token_ids={}
    ) as unfinished:
        fill(unfinished, tensors)


def loaded(path: Path) -> dict[str, np.ndarray]:
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt"}
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)


def test_the_library_reads_one_file_with_the_same_bits(tmp_path: Path) -> None:
    tensors = make_tensors()
    write(tmp_path / "out", tensors)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    found = loaded(tmp_path / "out" / "model.safetensors")
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert found[name].tobytes() == array.tobytes(), name


def test_no_file_is_larger_than_asked_and_the_index_names_each(tmp_path: Path) -> None:
    tensors = make_tensors()
    write(tmp_path / "out", tensors, largest=9000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in tensors.values())
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert [path.name for path in files] == [
        f"model-{n + 1:05}-of-{len(files):05}.safetensors" for n in range(len(files))
    ]
    for path in files:
        found = loaded(path)
        assert sum(array.nbytes for array in found.values()) <= 9000 or len(found) == 1
        assert {name for name, file in index["weight_map"].items() if file == path.name} == found.keys()
        for name, array in found.items():
            assert array.tobytes() == tensors[name].tobytes(), name
    assert len(files) > 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_dtypes_are_rounded_to_the_nearest(tmp_path: Path, dtype: str) -> None:
    tensors = make_tensors()
    write(tmp_path / "out", tensors, dtype)
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        for name, array in tensors.items():
            expected = torch.from_numpy(array).to(getattr(torch, dtype))
            assert torch.equal(file.get_tensor(name), expected), name
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == dtype


def test_what_float16_cannot_hold_is_refused_by_name_and_leaves_nothing(tmp_path: Path) -> None:
    tensors = make_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = 70000.0
    with pytest.raises(InputError, match=r"model.layers.1.mlp.up_proj.weight has .* float16; .* 7e\+04; use"):
        write(tmp_path / "out", tensors, "float16")
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "out", tensors, "bfloat16")
    assert ml_dtypes.finfo(ml_dtypes.bfloat16).max > 70000


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_fault_in_the_middle_leaves_nothing(tmp_path: Path, error, monkeypatch) -> None:
    real, filled = writer.map_tensor, []

    def map_tensor(tensor, **options):
        filled.append(tensor)
        assert list(tmp_path.iterdir()) != []
        if len(filled) == 20:
            raise error
        return real(tensor, **options)

    monkeypatch.setattr(writer, "map_tensor", map_tensor)
    with pytest.raises(type(error)):
        write(tmp_path / "out", make_tensors(), largest=9000)
    assert len(filled) == 20
    assert list(tmp_path.iterdir()) == []


def test_until_all_is_written_the_folder_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()  # an empty one may be there
    with whole_model(
        tmp_path / "out", MODEL, dtype=np.dtype(np.float32), max_shard_bytes=9000, token_ids={}
    ) as unfinished:
        fill(unfinished, make_tensors())
        assert list((tmp_path / "out").iterdir()) == []
        (unfinished.folder / "tokenizer.json").write_text("{}")
    assert {"config.json", "tokenizer.json"} < {path.name for path in (tmp_path / "out").iterdir()}


def test_a_folder_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    with pytest.raises(InputError, match="must not exist yet, or be an empty folder"):
        write(tmp_path / "out", make_tensors())
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine"]
