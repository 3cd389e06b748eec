"""config.json: both schemas say one model, and what we do not support is refused by name."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig as TheirConfig

from jaxpipe.errors import InputError
from jaxpipe.hugging_face.config_json import config_json, read_config
from jaxpipe.models.llama_config import LlamaConfig, RopeScaling

OLD = """{
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": [128001, 128008], "head_dim": 64, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
  "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256
}"""
"""As transformers 4 wrote that of Llama 3.2 1B."""

LLAMA_3_2_1B = LlamaConfig(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    rope_theta=500000.0,
    rope_scaling=RopeScaling(factor=32.0),
    max_position_embeddings=131072,
    tie_word_embeddings=True,
)

DEEP = OLD.replace("false", "[" * 900 + "]" * 900, 1)
"""Which Python still reads, but could not print."""

SCALINGS = [
    None,
    RopeScaling(rope_type="linear", factor=4.0),
    RopeScaling(factor=8.0, low_freq_factor=1.5, high_freq_factor=3.0, original_max_position_embeddings=64),
]

NEW_FIELD, OLD_FIELDS = "rope_parameters", ("rope_theta", "rope_scaling")


def read(folder: Path, fields: dict[str, Any] | str) -> LlamaConfig:
    (folder / "config.json").write_text(fields if isinstance(fields, str) else json.dumps(fields))
    return read_config(folder)


def refusal(folder: Path, fields: dict[str, Any] | str) -> str:
    with pytest.raises(InputError) as refused:
        read(folder, fields)
    return str(refused.value)


def test_the_old_schema_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, OLD) == LLAMA_3_2_1B


def test_the_new_schema_is_read(tmp_path: Path) -> None:
    fields = json.loads(OLD)
    theta, scaling = (fields.pop(name) for name in OLD_FIELDS)
    fields |= {NEW_FIELD: scaling | {"rope_theta": theta}, "dtype": fields.pop("torch_dtype")}
    assert read(tmp_path, fields) == LLAMA_3_2_1B


def test_linear_scaling_of_old_files_says_type(tmp_path: Path) -> None:
    model = read(tmp_path, json.loads(OLD) | {"rope_scaling": {"type": "linear", "factor": 2}})
    assert model.rope_scaling == RopeScaling(rope_type="linear", factor=2.0)


def test_what_is_absent_is_what_transformers_takes(tmp_path: Path) -> None:
    sizes = {"vocab_size": 300, "hidden_size": 24, "intermediate_size": 20}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 6}
    found, theirs = read(tmp_path, sizes | {"model_type": "llama"}), TheirConfig(**sizes)
    for name in ("rms_norm_eps", "initializer_range", "max_position_embeddings", "tie_word_embeddings"):
        assert getattr(found, name) == getattr(theirs, name), name
    assert (found.kv_heads, found.head_size) == (theirs.num_key_value_heads, theirs.head_dim)
    assert found.rope_theta == theirs.rope_parameters["rope_theta"]
    assert found.rope_scaling is None


@pytest.mark.parametrize("scaling", SCALINGS)
def test_what_is_written_is_the_same_model_in_both_schemas(tmp_path: Path, scaling) -> None:
    model = replace(LLAMA_3_2_1B, rope_scaling=scaling, rope_theta=12345.5, tie_word_embeddings=False)
    text = config_json(model, dtype="bfloat16", token_ids={"eos": 7})
    assert read(tmp_path, text) == model
    fields = json.loads(text)
    assert (fields["eos_token_id"], fields["bos_token_id"]) == (7, None)
    old = {name: value for name, value in fields.items() if name != NEW_FIELD}
    new = {name: value for name, value in fields.items() if name not in OLD_FIELDS}
    assert read(tmp_path, old) == read(tmp_path, new) == model


@pytest.mark.parametrize("scaling", SCALINGS)
def test_transformers_reads_what_is_written(tmp_path: Path, scaling) -> None:
    model = replace(LLAMA_3_2_1B, rope_scaling=scaling, rope_theta=12345.5, rms_norm_eps=3e-6)
    (tmp_path / "config.json").write_text(config_json(model, dtype="float16", token_ids={}))
    theirs = TheirConfig.from_pretrained(tmp_path)
    for name in ("vocab_size", "hidden_size", "head_dim", "num_key_value_heads", "rms_norm_eps"):
        assert getattr(theirs, name) == getattr(model, name), name
    assert theirs.tie_word_embeddings
    assert str(theirs.dtype) == "torch.float16"
    assert (theirs.bos_token_id, theirs.eos_token_id) == (None, None)
    rope = dict(theirs.rope_parameters)
    assert rope.pop("rope_theta") == 12345.5
    assert rope.pop("rope_type") == (scaling.rope_type if scaling else "default")
    assert rope == {name: getattr(scaling, name) for name in rope}
    assert len(rope) == {"default": 0, "linear": 1, "llama3": 4}[scaling.rope_type if scaling else "default"]


UNSUPPORTED = [
    ({"attention_bias": True}, "attention_bias=true is not supported, only false"),
    ({"mlp_bias": True}, "mlp_bias=true"),
    ({"hidden_act": "gelu"}, 'hidden_act="gelu" is not supported, only "silu"'),
    ({"sliding_window": 4096}, "sliding_window=4096"),
    ({"layer_types": ["sliding_attention"]}, "layer_types="),
    ({"quantization_config": {"quant_method": "awq"}}, "quantization_config="),
    ({"attention_dropout": 0.1}, "attention_dropout=0.1"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ({"model_type": "mistral"}, 'model_type="mistral"'),
    ({"architectures": ["LlamaForSequenceClassification"]}, "architectures="),
    ({"rope_interleaved": True}, "rope_interleaved=true"),
    ({"qk_norm": True}, "qk_norm=true is not known"),
    ({"original_max_position_embeddings": 4096}, "original_max_position_embeddings=4096 is not known"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling has rope_type 'dynamic'"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_scaling has rope_type 'yarn'"),
    ({"rope_scaling": {"rope_type": ["x"], "factor": 2.0}}, "rope_scaling has rope_type"),
    (
        {"rope_scaling": None, NEW_FIELD: {"rope_type": "longrope"}},
        "rope_parameters has rope_type 'longrope'",
    ),
    ({"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2}}, "says both"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.low_freq_factor must be"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2, "attention_factor": 3}}, "attention_factor"),
    ({"rope_scaling": 3}, "rope_scaling=3 must be an object"),
    ({"rope_theta": -1}, "rope_theta=-1 must be a number above 0"),
    ({"hidden_size": True}, "hidden_size=True must be a whole number"),
    ({"vocab_size": 32000.0}, "vocab_size=32000.0 must be a whole number"),
    ({"rms_norm_eps": "1e-5"}, "rms_norm_eps='1e-5' must be a number"),
    ({"rms_norm_eps": 10**400}, "rms_norm_eps=1000"),
    ({"rope_theta": 10**400}, "rope_theta=1000"),
    ({"vocab_size": 10**30}, "is too large; it must be at most 2147483647"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 10**400}}, "rope_scaling.factor must be a number"),
    (
        {"rope_scaling": json.loads(OLD)["rope_scaling"] | {"original_max_position_embeddings": 512.5}},
        "rope_scaling.original_max_position_embeddings=512.5 must be a whole number",
    ),
    ({"tie_word_embeddings": None}, "tie_word_embeddings=None must be true or false"),
]


@pytest.mark.parametrize(("change", "words"), UNSUPPORTED)
def test_what_we_do_not_support_is_refused_by_name(tmp_path: Path, change, words: str) -> None:
    assert words in refusal(tmp_path, json.loads(OLD) | change)


def test_all_that_is_not_supported_is_told_at_once(tmp_path: Path) -> None:
    said = refusal(tmp_path, json.loads(OLD) | {"mlp_bias": True, "odd": 1, "rope_theta": 0})
    assert all(name in said for name in ("mlp_bias", "odd", "rope_theta"))


@pytest.mark.parametrize("name", ["model_type", "hidden_size", "num_hidden_layers"])
def test_a_field_that_is_needed_and_missing_is_named(tmp_path: Path, name: str) -> None:
    fields = json.loads(OLD)
    del fields[name]
    assert f"{name} is missing" in refusal(tmp_path, fields)


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (
            {"rope_theta": 10000.0, "factor": 32.0},
            "rope_theta=500000.0 and rope_parameters.rope_theta=10000.0",
        ),
        ({"factor": 8.0}, r"rope_scaling \(llama3, factor 32, .*\) and rope_parameters \(llama3, factor 8, "),
        (
            {"rope_type": "default"},
            r"rope_scaling \(llama3, .*\) and rope_parameters \(no scaling\) contradict",
        ),
    ],
)
def test_schemas_that_contradict_each_other_are_refused(tmp_path: Path, new, words: str) -> None:
    fields = json.loads(OLD)
    said = {"rope_type": "default"} if new.get("rope_type") else fields["rope_scaling"] | new
    assert re.search(words, refusal(tmp_path, fields | {NEW_FIELD: said}))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"rope_theta": NaN}', "\xff", "[" * 10**5, DEEP])
def test_what_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    assert str(tmp_path / "config.json") in refusal(tmp_path, text)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must hold a config\.json"):
        read_config(tmp_path)
