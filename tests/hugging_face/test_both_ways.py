"""From transformers into a run and back: the same logits, the same bits."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hf_runs import LLAMA_3, import_run, params_of, save_llama
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from jaxpipe.checkpoint.manifest import read_manifest
from jaxpipe.cli import main
from jaxpipe.config import Config, from_saved, from_yaml
from jaxpipe.data import load_corpus, validation_batches
from jaxpipe.data.samples import IGNORE_LABEL
from jaxpipe.errors import InputError
from jaxpipe.hugging_face.torch_logits import torch_logits
from jaxpipe.training import weights_import
from jaxpipe.training.saved_logits import saved_logits
from jaxpipe.training.trainer import train

CASES = {
    "untied": {},
    "tied": {"tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "usual head_dim": {"head_dim": None, "rope_parameters": LLAMA_3, "num_key_value_heads": 6},
}


def logits_of(run: Path, tokens: np.ndarray) -> np.ndarray:
    folder = run / "checkpoints" / "0"
    manifest = read_manifest(folder)
    return saved_logits(folder, manifest, from_saved(manifest.info["config"], name="run").model, tokens)


def random_tokens(length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(260, size=(1, length), dtype=np.int32)


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    return {name: t for file in directory.glob("*.safetensors") for name, t in load_file(file).items()}


@pytest.fixture(scope="module", params=CASES)
def imported(request, tmp_path_factory, text) -> tuple[Path, Path, LlamaForCausalLM]:
    """The folder of Hugging Face, the run, and the model that transformers saved."""
    folder = tmp_path_factory.mktemp("llama")
    model = save_llama(folder / "hf", **CASES[request.param])
    assert import_run(folder / "hf", folder / "run", text) == 0
    return folder / "hf", folder / "run", model


def test_logits_are_those_of_transformers(imported) -> None:
    """Within 1e-4 in fp32: sums have other orders; logits reach some units."""
    directory, run, model = imported
    tokens = random_tokens(40)
    with torch.no_grad():
        theirs = model.eval()(torch.from_numpy(tokens).long()).logits.numpy()
    ours = logits_of(run, tokens)
    assert np.abs(theirs).max() > 1
    assert np.abs(ours - theirs).max() < 1e-4
    assert np.abs(torch_logits(directory, tokens) - theirs).max() < 1e-5  # another attention of theirs


def test_what_is_exported_is_what_was_imported_to_the_bit(imported, tmp_path: Path, text: str) -> None:
    directory, run, model = imported
    assert main(["export-hf", str(run), str(tmp_path / "out"), "--max-shard-size", "15KB"]) == 0
    again = LlamaForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    state = model.state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)
    tokens = random_tokens(40)
    np.testing.assert_array_equal(torch_logits(tmp_path / "out", tokens), torch_logits(directory, tokens))
    stored = set(weights_of(tmp_path / "out"))
    assert stored == set(state) - ({"lm_head.weight"} if model.config.tie_word_embeddings else set())
    assert import_run(tmp_path / "out", tmp_path / "again", text) == 0
    first, second = params_of(run), params_of(tmp_path / "again")
    assert first.keys() == second.keys()
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


def test_an_old_config_gives_the_logits_of_the_new_one(tmp_path: Path, text: str) -> None:
    """transformers 4 wrote ``rope_scaling`` and ``rope_theta``."""
    save_llama(tmp_path / "hf", rope_parameters=LLAMA_3)
    assert import_run(tmp_path / "hf", tmp_path / "new", text) == 0
    path = tmp_path / "hf" / "config.json"
    fields = json.loads(path.read_text())
    rope = fields.pop("rope_parameters")
    path.write_text(json.dumps(fields | {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}))
    assert import_run(tmp_path / "hf", tmp_path / "old", text) == 0
    tokens = random_tokens(600)
    np.testing.assert_array_equal(logits_of(tmp_path / "new", tokens), logits_of(tmp_path / "old", tokens))


@pytest.mark.parametrize("is_tied", [False, True])
def test_llama_3_scaling_holds_beyond_position_3000(tmp_path: Path, text: str, is_tied: bool) -> None:
    """Without it the logits there are 1e-3 away: the test would see it.

    With weights as large as transformers begins with; see the next test for larger ones.
    """
    changes = {"initializer_range": 0.02, "num_hidden_layers": 6, "tie_word_embeddings": is_tied}
    model = save_llama(tmp_path / "hf", rope_parameters=LLAMA_3, **changes)
    assert import_run(tmp_path / "hf", tmp_path / "run", text) == 0
    tokens = random_tokens(3100)
    with torch.no_grad():
        theirs = model.eval()(torch.from_numpy(tokens).long()).logits[:, 3000:].numpy()
    assert np.abs(logits_of(tmp_path / "run", tokens)[:, 3000:] - theirs).max() < 1e-4


LLAMA_3_CONTEXT = (512, 1.0, 4.0)
LINEAR = CASES["linear"]["rope_parameters"]
DEFAULT = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize("rope", [LLAMA_3, LINEAR, DEFAULT], ids=["llama3", "linear", "default"])
def test_logits_beyond_position_3000_are_those_of_exact_angles(tmp_path: Path, text: str, rope) -> None:
    """With weights so large that the fp32 angles of transformers make more than 1e-4, the rest 3e-5.

    So its model runs in fp64, with angles that are computed here.
    """
    changes = {"initializer_range": 0.35, "num_hidden_layers": 2}
    model = save_llama(tmp_path / "hf", rope_parameters=rope, **changes)
    assert import_run(tmp_path / "hf", tmp_path / "run", text) == 0
    tokens = random_tokens(3200)
    ours = logits_of(tmp_path / "run", tokens)[:, 3000:]
    with torch.no_grad():
        rounded = model.eval()(torch.from_numpy(tokens).long()).logits[:, 3000:].numpy()
        model = model.double()
        model.model.rotary_emb.forward = exact_rotary(rope, head_dim=10)
        exact = model(torch.from_numpy(tokens).long()).logits[:, 3000:].numpy()
    assert np.abs(exact).max() > 7
    assert np.abs(ours - exact).max() < 1e-4
    assert np.abs(rounded - exact).max() > 2 * np.abs(ours - exact).max()


def exact_rotary(rope: dict[str, Any], *, head_dim: int) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """cos and sin of fp64 angles, instead of transformers' own."""
    frequencies = []
    for pair in range(head_dim // 2):
        frequency = rope["rope_theta"] ** (-2 * pair / head_dim)
        if rope["rope_type"] == "linear":
            frequency /= rope["factor"]
        if rope["rope_type"] == "llama3":
            length, low, high = LLAMA_3_CONTEXT
            turns = length * frequency / (2 * math.pi)
            share = min(max((turns - low) / (high - low), 0), 1)
            frequency *= share + (1 - share) / rope["factor"]
        frequencies.append(frequency)
    frequencies = torch.tensor(frequencies * 2, dtype=torch.float64)

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].double() * frequencies
        return angles.cos(), angles.sin()

    return forward


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_files_of_16_bits_come_back_to_the_byte(tmp_path: Path, text: str, dtype: str) -> None:
    save_llama(tmp_path / "hf", dtype=getattr(torch, dtype))
    assert import_run(tmp_path / "hf", tmp_path / "run", text) == 0
    assert main(["export-hf", str(tmp_path / "run"), str(tmp_path / "out"), "--dtype", dtype]) == 0
    before, after = weights_of(tmp_path / "hf"), weights_of(tmp_path / "out")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].view(torch.int16), after[name].view(torch.int16)) for name in before)


@pytest.mark.parametrize(
    "flags",
    [
        ("--mesh.dp", 2, "--mesh.pp", 2, "--mesh.tp", 1, "--mesh.zero", 3),
        ("--mesh.dp", 2, "--mesh.pp", 2, "--mesh.tp", 2),
        ("--mesh.pp", 4),
    ],
)
def test_a_mesh_changes_no_bit_of_what_is_imported_or_exported(tmp_path: Path, text: str, flags) -> None:
    changes = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 261}
    save_llama(tmp_path / "hf", **changes)
    assert import_run(tmp_path / "hf", tmp_path / "one", text) == 0
    assert import_run(tmp_path / "hf", tmp_path / "many", text, *flags) == 0
    one, many = params_of(tmp_path / "one"), params_of(tmp_path / "many")
    assert all(one[name].tobytes() == many[name].tobytes() for name in one)
    assert main(["export-hf", str(tmp_path / "many"), str(tmp_path / "out")]) == 0
    before, after = weights_of(tmp_path / "hf"), weights_of(tmp_path / "out")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_each_device_gets_its_share_alone_and_no_element_is_read_twice(
    tmp_path: Path, text: str, monkeypatch
) -> None:
    """With dp 2 every share lies on two devices; with pp 2 it is half of a leaf at most, but for the norm."""
    model, read = save_llama(tmp_path / "hf"), weights_import.read_part
    sizes: dict[str, list[int]] = {}

    def read_part(weights, leaf, index):
        part = read(weights, leaf, index)
        sizes.setdefault(leaf.name, []).append(part.size)
        return part

    monkeypatch.setattr(weights_import, "read_part", read_part)
    assert import_run(tmp_path / "hf", tmp_path / "run", text, "--mesh.pp", 2, "--mesh.dp", 2) == 0
    assert sum(map(sum, sizes.values())) == model.num_parameters()
    assert {name for name, parts in sizes.items() if len(parts) == 1} == {"final.scale"}
    assert all(max(parts) * 2 == sum(parts) for parts in sizes.values() if len(parts) > 1)


def test_an_imported_run_goes_on_like_any_other(tmp_path: Path, text: str) -> None:
    """From checkpoint 0 on; its first evaluation is the loss that transformers finds for the same text."""
    save_llama(tmp_path / "hf")
    run = tmp_path / "run"
    flags = ("--mesh.pp", 4, "--train.eval_every", 1, "--train.eval_batches", 1, "--train.num_steps", 2)
    assert import_run(tmp_path / "hf", run, text, *flags) == 0
    assert sorted(path.name for path in run.iterdir() if path.name[0] != ".") == [
        "checkpoints",
        "config.yaml",
        "imported.txt",
    ]
    assert Path((run / "imported.txt").read_text().strip()) == tmp_path / "hf"
    saved = (run / "config.yaml").read_text()
    config = from_yaml(saved.replace("resume: false", "resume: true"))
    assert config.checkpoint.resume
    assert train(config) == 0
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if "loss" in line] == [1, 2]
    evaluation = next(line for line in metrics if "eval_loss" in line)
    assert evaluation["step"] == 0
    assert abs(evaluation["eval_loss"] - their_loss(tmp_path / "hf", config)) < 1e-4
    assert main(["export-hf", str(run), str(tmp_path / "out")]) == 0
    assert main(["compare-hf", str(tmp_path / "out"), str(run)]) == 0
    assert main(["compare-hf", str(tmp_path / "hf"), str(run), "--sequence-length", "16"]) == 1


def their_loss(directory: Path, config: Config) -> float:
    """Of the first validation batch, by transformers and the cross entropy of PyTorch."""
    corpus = load_corpus(config.data.path, field="text", validation_fraction=0.2)
    (batch,) = validation_batches(corpus.validation, sequence_length=16, batch_size=8, num_batches=1)
    logits = torch.from_numpy(torch_logits(directory, batch["tokens"])).flatten(0, 1)
    labels = torch.from_numpy(batch["labels"].astype(np.int64)).flatten()
    return float(torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE_LABEL))


def test_an_imported_run_without_its_checkpoint_never_starts_from_random_weights(
    tmp_path: Path, text: str
) -> None:
    save_llama(tmp_path / "hf")
    run = tmp_path / "run"
    assert import_run(tmp_path / "hf", run, text) == 0
    shutil.rmtree(run / "checkpoints" / "0")
    config = from_yaml((run / "config.yaml").read_text().replace("resume: false", "resume: true"))
    with pytest.raises(InputError, match=r"no checkpoint to resume from, but there are imported\.txt"):
        train(config)
