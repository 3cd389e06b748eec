"""A configuration whose model comes from elsewhere: the rest is said as ever, and nothing contradicts it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe.config import Config, parse_for_model
from jaxpipe.models.llama_config import LlamaConfig, RopeScaling

MODEL = LlamaConfig(
    vocab_size=300,
    hidden_size=24,
    intermediate_size=20,
    num_hidden_layers=8,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=10,
    rms_norm_eps=1e-6,
    rope_theta=500000.0,
    rope_scaling=RopeScaling(factor=32.0),
    max_position_embeddings=4096,
    tie_word_embeddings=True,
)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Config]:
    def parse(*argv: str, model: LlamaConfig = MODEL) -> Config:
        command, faults = parse_for_model(
            argv, model, origin="config.json", run_directory=str(tmp_path / "run")
        )
        assert faults == []
        assert command is not None
        return command.config

    return parse


@pytest.fixture
def refuse(tmp_path: Path) -> Callable[..., list[str]]:
    def parse(*argv: str, model: LlamaConfig = MODEL) -> list[str]:
        command, faults = parse_for_model(
            argv, model, origin="config.json", run_directory=str(tmp_path / "run")
        )
        assert command is None
        return [str(fault) for fault in faults]

    return parse


@pytest.mark.parametrize("model", [MODEL, replace(MODEL, rope_scaling=None, head_dim=None)])
def test_the_model_is_the_one_that_was_given_and_the_default_file_says_the_rest(
    read, model, tmp_path
) -> None:
    config = read("--train.num_steps", "7", model=model)
    assert config.model == model
    assert config.train.num_steps == 7
    assert config.run.dir == str(tmp_path / "run")
    assert config.pipeline.num_microbatches == 8  # of configs/tiny.yaml, whose model is another one


def test_flags_and_a_named_file_may_say_the_same(read, tmp_path: Path) -> None:
    flags = ["--model.rope_theta", "500000", "--model.rope_scaling.factor", "32", "--model.head_dim", "10"]
    assert read(*flags).model == MODEL
    file = tmp_path / "mine.yaml"
    file.write_text(
        "model: {hidden_size: 24, tie_word_embeddings: true}\ndata: {sequence_length: 8}\n"
        "pipeline: {num_microbatches: 4}\ntrain: {num_steps: 3, global_batch_size: 4}\n"
        "optimizer: {learning_rate: 0.1}\n"
    )
    config = read(str(file))
    assert (config.model, config.data.sequence_length) == (MODEL, 8)


def test_null_means_what_it_stands_for(read, refuse) -> None:
    usual = replace(MODEL, head_dim=4, num_key_value_heads=6)
    assert read("--model.head_dim", "null", "--model.num_key_value_heads", "null", model=usual).model == usual
    assert len(refuse("--model.head_dim", "null", "--model.num_key_value_heads", "null")) == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--model.rope_theta", "10000"],
            "command line: model.rope_theta=10000.0 must be 500000.0, as in config",
        ),
        (["--model.hidden_size", "x"], "command line: model.hidden_size must be a whole number"),
        (
            ["--model.rope_scaling.factor", "8"],
            "model.rope_scaling.factor=8.0 must be 32.0, as in config.json",
        ),
        (["--model.rope_scaling", "null"], "model.rope_scaling is null here, but config.json has a scaling"),
        (["--run.dir", "other"], "leave run.dir out"),
        (["--checkpoint.resume"], "checkpoint.resume goes on with a run"),
        (["--data.sequence_length", "5000"], "must be at most model.max_position_embeddings=4096"),
        (["--mesh.tp", "2"], "model.num_key_value_heads=3 must be a multiple of mesh.tp=2"),
    ],
)
def test_what_contradicts_the_model_or_the_run_is_refused(refuse, flags: list[str], words: str) -> None:
    (said,) = refuse(*flags)
    assert words in said


def test_a_file_that_is_named_counts_with_its_model(refuse) -> None:
    said = refuse("configs/tiny.yaml")
    assert any(
        "configs/tiny.yaml:9: model.vocab_size=257 must be 300, as in config.json" in fault for fault in said
    )


def test_a_scaling_that_the_model_has_not_is_refused(refuse) -> None:
    (said,) = refuse("--model.rope_scaling.factor", "8", model=replace(MODEL, rope_scaling=None))
    assert "model.rope_scaling.factor=8.0 must be None" in said


def test_a_model_that_cannot_be_is_told_with_its_origin(refuse) -> None:
    (said,) = refuse(model=replace(MODEL, vocab_size=100))
    assert said.startswith("config.json: model.vocab_size=100 must be at least 257")


def test_a_directory_with_a_run_is_refused(refuse, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    (said,) = refuse()
    assert "already holds a run" in said
