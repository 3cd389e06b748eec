"""The way of a new user, by commands alone: own text, tokens, training, curves, a sample, transformers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, LlamaForCausalLM

from jaxpipe.checkpoint.manifest import read_manifest
from jaxpipe.cli import main
from jaxpipe.data import load_tokenizer
from jaxpipe.hugging_face.tokenizer_copy import put_tokenizer

ROOT = Path(__file__).parents[2]
END = "<|end|>"
WORDS = ["den", "Fluss", "hinab", "zieht", "ein", "Boot", "über", "Steine", "und", "Sand"]

TRAINING = """
model: {vocab_size: 320, hidden_size: 24, intermediate_size: 40, num_hidden_layers: 4, num_attention_heads: 4,
        num_key_value_heads: 2, head_dim: 8, max_position_embeddings: 64, tie_word_embeddings: true}
data: {sequence_length: 32, isolate_documents: true}
mesh: {pp: 4}
pipeline: {schedule: zb_h1, num_microbatches: 4}
train: {num_steps: 30, global_batch_size: 8, eval_every: 15, eval_batches: 2, sample_prompt: den,
        sample_tokens: 8}
optimizer: {learning_rate: 0.02, warmup_steps: 3}
"""


def make_texts(folder: Path) -> None:
    """Documents of sentences, as JSON lines and as text."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    documents = [" ".join(rng.choice(WORDS, rng.integers(3, 40))) + f" {END}." for _ in range(300)]
    (folder / "first.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    (folder / "second.txt").write_text("\n".join(documents[:20]))


def make_tokenizer(file: Path, folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(folder / "second.txt")], trainer)
    tokenizer.save(str(file))


def call(*words: object) -> str:
    """What the command prints; it must end well."""
    finished = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, env=os.environ
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with texts, tokens and a finished run."""
    place = tmp_path_factory.mktemp("place")
    make_texts(place / "texts")
    make_tokenizer(place / "mine.json", place / "texts")
    (place / "mine.yaml").write_text(TRAINING)
    flags = ["--tokenizer", str(place / "mine.json"), "--end-of-document", END]
    assert main(["data", "prepare", str(place / "texts"), "-o", str(place / "tokens"), *flags]) == 0
    said = call(
        "train.py",
        place / "mine.yaml",
        *("--data.path", place / "tokens", "--run.dir", place / "run"),
    )
    assert "mine.json, 300 ids" in said
    assert "isolated: attention, positions and labels stay within each" in " ".join(said.split())
    for name in ("texts", "tokens", "mine.json"):  # nothing but the run is needed from here on
        path = place / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return place


def test_the_loss_falls_and_samples_are_of_the_text(place: Path) -> None:
    lines = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
    assert losses[-1] < losses[0] - 1
    samples = [json.loads(line) for line in (place / "run" / "samples.jsonl").read_text().splitlines()]
    assert [line["step"] for line in samples] == [0, 15, 30]


def test_the_run_is_drawn(place: Path) -> None:
    assert main(["plot", str(place / "run")]) == 0
    assert (place / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_run_writes_with_its_own_tokenizer(place: Path, capsys) -> None:
    words = [
        "generate",
        str(place / "run"),
        "--prompt",
        "den Fluss",
        "--temperature",
        "0",
        "--num-tokens",
        "12",
    ]
    assert main([*words, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (sample,) = said["samples"]
    assert set(sample["text"].split()) & set(WORDS)
    moved = place / "moved"
    shutil.copytree(place / "run" / "checkpoints" / "30", moved / "30")
    assert main(["generate", str(moved / "30"), "--prompt", "den"]) == 2
    assert "tokenizer/mine.json cannot be read" in capsys.readouterr().err
    kept = str(place / "run" / "tokenizer" / "mine.json")
    assert main(["generate", str(moved / "30"), "--prompt", "den", "--tokenizer", kept]) == 0


def test_transformers_reads_the_same_tokens_and_has_the_same_logits(place: Path, capsys) -> None:
    assert main(["export-hf", str(place / "run"), str(place / "hf")]) == 0
    assert main(["compare-hf", str(place / "hf"), str(place / "run")]) == 0
    theirs = AutoTokenizer.from_pretrained(place / "hf")
    ours = load_tokenizer(str(place / "run" / "tokenizer" / "mine.json"), end_of_document=END)
    text = "über den Fluss, Boot ü"
    (ids,) = ours.encode([text.encode()])
    assert theirs(text)["input_ids"] == ids.tolist()
    assert theirs.decode(ids) == text == ours.decode(ids.tolist())
    model = LlamaForCausalLM.from_pretrained(place / "hf")
    assert model.config.eos_token_id == theirs.eos_token_id == ours.end_of_document

    capsys.readouterr()
    words = ["generate", str(place / "run"), "--prompt", text, "--temperature", "0", "--num-tokens", "16"]
    assert main([*words, "--format", "json"]) == 0
    (sample,) = json.loads(capsys.readouterr().out)["samples"]
    found = model.generate(torch.tensor([ids.tolist()]), max_new_tokens=16, do_sample=False)
    assert theirs.decode(found[0, len(ids) :], skip_special_tokens=True) == sample["text"]


def test_what_is_imported_again_has_the_tokenizer_of_its_folder(place: Path, capsys) -> None:
    assert main(["export-hf", str(place / "run"), str(place / "again")]) == 0
    make_texts(place / "more")
    words = ["import-hf", str(place / "again"), str(place / "second"), str(place / "rest.yaml")]
    (place / "rest.yaml").write_text(TRAINING[TRAINING.index("data:") :])
    assert main([*words, "--data.path", str(place / "more")]) == 0
    info = read_manifest(place / "second" / "checkpoints" / "0").info
    kept = read_manifest(place / "run" / "checkpoints" / "30").info
    assert info["tokenizer"] | {"file": "mine.json"} == kept["tokenizer"]
    assert (place / "second" / "tokenizer" / "tokenizer.json").exists()


def test_weights_are_exported_without_a_tokenizer_that_has_gone(place: Path, capsys) -> None:
    shutil.copytree(place / "run", place / "bare")
    shutil.rmtree(place / "bare" / "tokenizer")
    assert main(["export-hf", str(place / "bare"), str(place / "bare-hf")]) == 0
    assert "the tokenizer is left out" in capsys.readouterr().err
    assert sorted(path.name for path in (place / "bare-hf").iterdir()) == ["config.json", "model.safetensors"]


def test_a_tokenizer_config_says_which_token_ended_documents(tmp_path: Path) -> None:
    """Also where the run was told another one than the file beside its tokenizer names."""
    make_texts(tmp_path / "texts")
    make_tokenizer(tmp_path / "mine.json", tmp_path / "texts")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "d", "model_max_length": 77}')
    ours = load_tokenizer(str(tmp_path / "mine.json"), end_of_document=END)
    folder = tmp_path / "hf"
    folder.mkdir()
    put_tokenizer(folder, ours)
    written = json.loads((folder / "tokenizer_config.json").read_text())
    assert written == {"eos_token": END, "model_max_length": 77}


def test_transformers_reads_the_tokens_of_a_model_of_sentencepiece(tmp_path: Path) -> None:
    make_texts(tmp_path / "texts")
    with (tmp_path / "mine.model").open("wb") as writer:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter((tmp_path / "texts" / "second.txt").read_text().splitlines()),
            model_writer=writer,
            vocab_size=300,
            byte_fallback=True,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    ours = load_tokenizer(str(tmp_path / "mine.model"))
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    put_tokenizer(folder, ours)
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in ("den Fluss hinab", "ü  ber", " x\n 日本"):
        (ids,) = ours.encode([text.encode()])
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids.tolist()
