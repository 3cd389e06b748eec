"""Every key, from YAML and from flags, with right values and with values of a wrong type."""

from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest

from jaxpipe.config import parse
from jaxpipe.config.keys import flatten, keys
from jaxpipe.config.values import is_list, options

PATHS = list(keys())
NEW_VALUES = {
    "model.vocab_size": 300,
    "model.hidden_size": 96,
    "model.num_hidden_layers": 7,
    "model.num_key_value_heads": 3,
    "model.head_dim": 10,
    "model.rope_scaling.rope_type": "default",
    "model.rope_scaling.low_freq_factor": 2.5,
    "model.rope_scaling.high_freq_factor": 5.5,
    "model.num_attention_heads": 12,
    "data.path": "jaxpipe/*.py",
    "pipeline.schedule": "zb_h1",
    "pipeline.num_microbatches": 6,
    "pipeline.num_chunks": 1,
    "pipeline.memory_limit": 3,
    "pipeline.costs": "tests/config/costs.json",
    "pipeline.layers_per_stage": (1, 2, 2, 1),
    "pipeline.remat": "none",
    "mesh.dp": 4,
    "mesh.pp": 3,
    "mesh.tp": 2,
    "train.global_batch_size": 18,
    "train.eval_batch_size": 24,
    "model.max_position_embeddings": 16,
    "train.compute_dtype": "bfloat16",
    "train.sample_prompt": "def f(x):\n ",
    "run.step_timeout": 9,
    "run.trace_step": 5,
    "optimizer.warmup_steps": 3,
    "optimizer.decay_steps": 7,
    "optimizer.min_learning_rate_ratio": 0.25,
    "run.dir": "2024",
    "run.wandb": "demo",
    "run.peak_flops": 1e15,
    "data.field": "null-ish",
    "data.tokenizer": "tests/config/letters.json",
    "data.end_of_document": "<stop>",
    "data.weights": (2.5,),
    "data.validation_fraction": 0.125,
    "distributed.coordinator": "node0:1234",
    "distributed.num_processes": 2,
    "distributed.process_id": 1,
}


NEEDED = {
    "checkpoint.keep_best": ("--train.eval_every", "1"),
    "train.sample_prompt": ("--train.eval_every", "1"),
    "pipeline.reverse_backward": ("--pipeline.schedule", "gpipe"),
    "pipeline.memory_limit": ("--pipeline.schedule", "auto"),
    "pipeline.costs": ("--pipeline.schedule", "auto"),
    "pipeline.schedule_recompute": ("--pipeline.remat", "full"),
    "mesh.sequence_parallel": ("--mesh.tp", "2"),
    "data.end_of_document": ("--data.tokenizer", "tests/config/letters.json"),
    "distributed.coordinator": ("--distributed.detect",),
    "distributed.num_processes": ("--distributed.detect",),
    "distributed.process_id": ("--distributed.detect",),
}
"""Without which a value is not right."""


def a_value(path: str) -> Any:
    """A right value that is not the key's default."""
    hint = keys()[path].hint
    if path in NEW_VALUES:
        return NEW_VALUES[path]
    if get_origin(hint) is Literal:
        return get_args(hint)[-1]
    return {int: 9, float: 0.125 if "rope" not in path else 9.5, bool: True}[hint]


def words(value: Any) -> list[str]:
    if isinstance(value, tuple):
        return [str(item) for item in value]
    return [str(value).lower() if isinstance(value, bool) else str(value)]


@pytest.mark.parametrize("path", [path for path in PATHS if path != "checkpoint.resume"])
@pytest.mark.parametrize("form", ["yaml", "words", "equals", "dashes"])
def test_every_key_can_be_set_from_yaml_and_from_flags(path, form, write_yaml, tmp_path, monkeypatch):
    value = a_value(path)
    if form == "yaml":
        *parents, name = path.split(".")
        written: Any = {name: list(value) if isinstance(value, tuple) else value}
        for parent in reversed(parents[1:]):
            written = {parent: written}
        (changed,) = written.items()
        argv = [write_yaml({f"{parents[0]}.{changed[0]}": changed[1]})]
    else:
        flag = "--" + (path.replace("_", "-") if form == "dashes" else path)
        first, *rest = words(value)
        argv = [write_yaml(), *([f"{flag}={first}"] if form == "equals" else [flag, first]), *rest]
    config = parse([*argv, *NEEDED.get(path, ()), "--dry-run"]).config
    assert flatten(config)[path] == value
    assert type(flatten(config)[path]) is type(value)
    assert value != keys()[path].default


def wrong_values(path: str) -> list[Any]:
    """Values that no type of this key allows."""
    allowed = options(keys()[path].hint)
    wrong: list[Any] = [{"a": 1}]
    if NoneType not in allowed:
        wrong.append(None)
    if str not in allowed:
        wrong += ["many", ""]
    if not any(is_list(option) for option in allowed):
        wrong.append([1, 2])
    elif str not in allowed:
        wrong += [3, [1, "two"], [[1]]]
        wrong += [[1.5]] if keys()[path].hint != tuple[float, ...] | None else []
    if int in allowed:
        wrong += [True, 3.0, 2.5, "3", 10**30]
    if float in allowed:
        wrong += [True, "1.0x"]
    if bool in allowed:
        wrong += [1, 0, "true"]
    if any(get_origin(option) is Literal for option in allowed):
        wrong += [7, True]
    return wrong


@pytest.mark.parametrize("path", PATHS)
def test_every_key_refuses_values_of_a_wrong_type_and_names_its_path(path, write_yaml, refuse):
    section, *names = path.split(".")
    for wrong in wrong_values(path):
        value = wrong
        for name in reversed(names[1:]):
            value = {name: value}
        said = refuse(write_yaml({f"{section}.{names[0]}": value}))
        assert f": {path} must be " in said, (path, wrong, said)


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "0.001", ".001", "1.0e-3", "+1e-3", "0.1e-2"])
def test_numbers_may_be_written_with_an_exponent_in_yaml_and_flags(text, write_yaml, tmp_path):
    file = write_yaml()
    content = (tmp_path / "right.yaml").read_text().replace("learning_rate: 0.001", f"learning_rate: {text}")
    assert text in content
    (tmp_path / "right.yaml").write_text(content)
    for argv in ([file], [file, f"--optimizer.learning_rate={text}"]):
        assert parse([*argv, "--dry-run"]).config.optimizer.learning_rate == 0.001


@pytest.mark.parametrize("text", ["010", "0x10", "1e3", "1__0", "_1", "1.", "٣", "--", " 5"])
def test_a_whole_number_has_one_spelling(text, write_yaml, refuse):
    assert "train.num_steps must be a whole number" in refuse(write_yaml(), f"--train.num_steps={text}")


def test_whole_numbers_serve_as_numbers_and_may_be_grouped(write_yaml):
    config = parse(
        [write_yaml({"optimizer.weight_decay": 0}), "--train.num_steps", "1_000", "--dry-run"]
    ).config
    assert config.optimizer.weight_decay == 0.0
    assert isinstance(config.optimizer.weight_decay, float)
    assert config.train.num_steps == 1000


def test_a_switch_is_true_alone_and_takes_true_or_false(write_yaml):
    file = write_yaml()
    for words_, expected in [([], True), (["true"], True), (["False"], False)]:
        argv = [file, "--pipeline.fuse_backward", *words_, "--dry-run"]
        assert parse(argv).config.pipeline.fuse_backward is expected
    assert parse(["--pipeline.fuse_backward", file, "--dry-run"]).config.model.hidden_size == 48
    assert parse(["--pipeline.fuse_backward=false", "--dry-run"]).config.pipeline.fuse_backward is False


def test_null_takes_a_value_back_to_its_automatic_choice(write_yaml):
    file = write_yaml({"pipeline.layers_per_stage": [1, 2, 2, 1], "model.rope_scaling": {"factor": 4}})
    for null in ("none", "null", "None"):
        argv = [file, "--pipeline.layers_per_stage", null, "--model.rope_scaling", null, "--dry-run"]
        config = parse([*argv, "--model.num_key_value_heads", null]).config
        assert config.pipeline.layers_per_stage is None
        assert config.model.rope_scaling is None
        assert config.model.num_key_value_heads is None
    assert parse([file, "--dry-run"]).config.model.rope_scaling.factor == 4.0


def test_one_number_is_a_list_of_one(write_yaml):
    argv = [write_yaml(), "--mesh.pp", "1", "--pipeline.layers_per_stage", "6", "--dry-run"]
    assert parse(argv).config.pipeline.layers_per_stage == (6,)


def test_a_list_of_paths_takes_the_words_up_to_the_next_flag(write_yaml):
    argv = [
        write_yaml(),
        "--data.path",
        "train.py",
        "jaxpipe/config/*.py",
        "--train.num_steps",
        "7",
        "--dry-run",
    ]
    config = parse(argv).config
    assert config.data.path == ("train.py", "jaxpipe/config/*.py")
    assert config.train.num_steps == 7
