"""Weights are found by their headers, refused by name, and read part by part."""

import json
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from weight_files import MODEL, make_tensors, save_shards, save_single

from jaxpipe.errors import InputError
from jaxpipe.hugging_face.reader import Weights, open_weights, read_part
from jaxpipe.hugging_face.tensor_names import Leaf, leaves_of, tensor_shapes

Q = "model.layers.1.self_attn.q_proj.weight"
TIED = replace(MODEL, tie_word_embeddings=True)


def whole(leaf: Leaf) -> tuple[slice, ...]:
    return tuple(slice(0, size) for size in leaf.shape)


def refusal(folder: Path, model=MODEL) -> str:
    with pytest.raises(InputError) as refused:
        open_weights(folder, model)
    return str(refused.value)


def test_the_names_are_those_of_a_model(tmp_path: Path) -> None:
    assert tensor_shapes(MODEL) == {name: array.shape for name, array in make_tensors().items()}


@pytest.mark.parametrize("save", [save_single, save_shards])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_leaf_is_its_tensors_stacked_and_turned(tmp_path: Path, save, dtype) -> None:
    tensors = make_tensors(dtype)
    weights = open_weights(save(tmp_path / "hf", tensors), MODEL)
    for leaf in leaves_of(MODEL):
        found = read_part(weights, leaf, whole(leaf))
        assert found.dtype == np.float32
        assert found.shape == leaf.shape
        rows = found if leaf.has_layers else found[None]
        for layer, row in enumerate(rows):
            expected = tensors[leaf.tensor_name(layer)].astype(np.float32)
            np.testing.assert_array_equal(row, expected.T if "_proj" in leaf.name else expected)


def test_a_part_is_that_part_and_no_more_is_read(tmp_path: Path) -> None:
    """The peak of what NumPy allocates is the result: no whole tensor, and not one for each layer."""
    big = replace(MODEL, hidden_size=512, intermediate_size=512, tie_word_embeddings=True)
    tensors = {name: np.zeros(shape, np.float32) for name, shape in tensor_shapes(big).items()}
    name = "model.layers.2.mlp.down_proj.weight"
    tensors[name] = np.random.default_rng(1).normal(size=(512, 512)).astype(np.float32)
    weights = open_weights(save_single(tmp_path / "hf", tensors), big)
    leaf = next(leaf for leaf in leaves_of(big) if leaf.name.endswith("down_proj"))
    tracemalloc.start()
    part = read_part(weights, leaf, (slice(1, 3), slice(8, 24), slice(100, 300)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(part[1], tensors[name].T[8:24, 100:300])
    assert part.shape == (2, 16, 200)
    assert peak < part.nbytes + 20_000 < tensors[name].nbytes / 10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop(Q), rf"{Q} is missing, of shape \[24, 18\]"),
        (lambda t: t.pop("lm_head.weight"), r"lm_head.weight is missing, .*is tie_word_embeddings true\?"),
        (lambda t: t.update(extra=np.zeros(3, np.float32)), r"extra is not expected, of shape \[3\]"),
        (
            lambda t: t.update({f"{Q[:-6]}bias": np.zeros(24, np.float32)}),
            r"model.layers.1.self_attn.q_proj.bias is not expected",
        ),
        (
            lambda t: t.update({"model.layers.3.input_layernorm.weight": np.ones(18, np.float32)}),
            r"model.layers.3.input_layernorm.weight is not expected",
        ),
        (
            lambda t: t.update({Q: np.zeros((18, 24), np.float32)}),
            rf"{Q} has shape \[18, 24\], but config.json says \[24, 18\]",
        ),
        (lambda t: t.update({Q: np.zeros((24, 18))}), rf"{Q} has dtype F64, .*F32, F16, BF16"),
    ],
)
def test_a_tensor_that_is_not_as_it_should_be_is_named(tmp_path: Path, change, words: str) -> None:
    tensors = make_tensors()
    change(tensors)
    said = refusal(save_shards(tmp_path / "hf", tensors))
    assert len(said.splitlines()) == 2
    assert re.search(words, said), said


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    tensors = make_tensors()
    del tensors[Q], tensors["model.norm.weight"]
    tensors["odd"] = np.zeros(1, np.float32)
    said = refusal(save_single(tmp_path / "hf", tensors))
    assert all(name in said for name in (Q, "model.norm.weight", "odd"))


def test_a_shard_that_is_missing_is_named_with_what_it_holds(tmp_path: Path) -> None:
    folder = save_shards(tmp_path / "hf", make_tensors())
    (folder / "model-1-of-2.safetensors").unlink()
    assert "names model-1-of-2.safetensors, which is missing, with model.layers.0" in refusal(folder)


@pytest.mark.parametrize("length", [0, 4, 100, -1])
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, length: int) -> None:
    folder = save_shards(tmp_path / "hf", make_tensors())
    path = folder / "model-0-of-2.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    said = refusal(folder)
    assert str(path) in said
    assert "copy it once more" in said


def test_an_index_that_says_something_else_than_the_files_is_refused(tmp_path: Path) -> None:
    folder = save_shards(tmp_path / "hf", make_tensors())
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][Q] = next(f for f in index["weight_map"].values() if f != index["weight_map"][Q])
    path.write_text(json.dumps(index))
    said = refusal(folder)
    assert said.count(Q) == 2  # the one file lacks it, of the other the index knows nothing
    index["weight_map"][Q] = "../else.safetensors"
    path.write_text(json.dumps(index))
    assert "without folders" in refusal(folder)
    for name in ("", ".", "..", "x" * 5000, "a\0b"):
        index["weight_map"][Q] = name
        path.write_text(json.dumps(index))
        assert "without folders" in refusal(folder), name
    for text in ("{}", "[" * 10**5):
        path.write_text(text)
        assert "weight_map" in refusal(folder)


def test_a_header_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    folder = save_single(tmp_path / "hf", make_tensors())
    header = b"[" * 10**5
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "its header cannot be read" in refusal(folder)


def test_a_folder_with_both_forms_or_none_is_refused(tmp_path: Path) -> None:
    save_single(tmp_path / "hf", make_tensors())
    assert "there are both" in refusal(save_shards(tmp_path / "hf", make_tensors()))
    (tmp_path / "none").mkdir()
    assert "there is neither" in refusal(tmp_path / "none")


def test_a_tied_model_may_have_the_embedding_as_head_once_more_and_nothing_else(tmp_path: Path) -> None:
    tensors = make_tensors()
    assert "lm_head.weight is not model.embed_tokens.weight" in refusal(
        save_single(tmp_path / "other", tensors), TIED
    )
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    weights = open_weights(save_single(tmp_path / "same", tensors), TIED)
    assert "lm_head.weight" not in weights.tensors
    del tensors["lm_head.weight"]
    assert isinstance(open_weights(save_single(tmp_path / "without", tensors), TIED), Weights)


def test_the_rope_buffers_of_old_files_are_passed_over(tmp_path: Path) -> None:
    tensors = make_tensors()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)
    weights = open_weights(save_single(tmp_path / "hf", tensors), MODEL)
    assert set(weights.tensors) == set(tensor_shapes(MODEL))
