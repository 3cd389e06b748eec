"""config.json of Hugging Face: read into a ``LlamaConfig``, refused by name, and written.

Every field of the file is one of

    a size or setting of the model    taken over, under the same name
    RoPE                              rope_json.py
    one that must have a value        since we support no other: bias, activation, sliding window, ...
    one that concerns no weight       ids of special tokens, generation, dtype, version: passed over

and what is none of these is refused: nobody knows whether it changes the model. An absent field has the
default of transformers' ``LlamaConfig``, which is not always ours (``rms_norm_eps``).
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxpipe.errors import InputError
from jaxpipe.hugging_face.json_text import parse_json, short
from jaxpipe.hugging_face.rope_json import NEW_FIELD, OLD_FIELDS, is_number, read_rope, write_rope
from jaxpipe.models.llama_config import LlamaConfig

FILE_NAME = "config.json"

_ARCHITECTURE = "LlamaForCausalLM"
_NEEDED_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
}
"""Of transformers' LlamaConfig. Two sizes may be null, one field is true or false, the others are numbers."""

_SIZES = (*_NEEDED_SIZES, "num_key_value_heads", "head_dim", "max_position_embeddings")
_LARGEST_SIZE = 2**31 - 1
_NUMBERS = ("rms_norm_eps", "initializer_range")
_SWITCH = "tie_word_embeddings"

_ALLOWED: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "architectures": ([_ARCHITECTURE], None),
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "attention_dropout": (0, None),
    "hidden_dropout": (0, None),
    "sliding_window": (None,),
    "use_sliding_window": (False, None),
    "layer_types": (None,),
    "quantization_config": (None,),
    "compression_config": (None,),
    "partial_rotary_factor": (1, None),
    "rope_interleaved": (False, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "tie_encoder_decoder": (False, None),
    "pruned_heads": ({}, None),
    "auto_map": (None,),
}
"""Fields that may only have these values."""

_HARMLESS = frozenset(
    {
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"),
        *("torch_dtype", "dtype", "transformers_version", "_name_or_path", "name_or_path"),
        *("use_cache", "pretraining_tp", "is_decoder", "_attn_implementation_autoset", "attn_implementation"),
        *("return_dict", "output_hidden_states", "output_attentions", "torchscript", "use_bfloat16"),
        *("task_specific_params", "problem_type", "id2label", "label2id", "finetuning_task", "prefix"),
        *("tokenizer_class", "chunk_size_feed_forward", "cross_attention_hidden_size", "tf_legacy_loss"),
        *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups"),
        *("diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty"),
        *("length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids"),
        *("num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id"),
        *("forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"),
        *("suppress_tokens", "begin_suppress_tokens", "max_sequence_length", "is_llama_config"),
        *("transformers.js_config", "unsloth_fixed", "unsloth_version"),
    }
)
"""Fields that say nothing of how logits follow from weights: most of them every model of transformers has.

``pretraining_tp`` made old versions cut the same products into parts.
"""


def read_config(directory: Path) -> LlamaConfig:
    """The model that ``directory``'s config.json describes.

    Raises:
        InputError: it cannot be read, or describes another model than we have; every such field is named.
    """
    path = directory / FILE_NAME
    try:
        fields = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{directory} must hold a {FILE_NAME}; name the folder of a model") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; correct that") from error
    except ValueError as error:
        raise InputError(f"{path} must be JSON, but: {error}; copy it once more") from error
    if not isinstance(fields, dict):
        raise InputError(f"{path} must be an object of fields; copy it once more")
    rope, rope_faults = read_rope(fields)
    faults = [*_value_faults(fields), *rope_faults, *_unknown_faults(fields)]
    if faults:
        raise InputError(
            f"{path} must describe a Llama that we support:\n  "
            + "\n  ".join(faults)
            + "\nuse another model; a field that changes nothing can be removed"
        )
    taken = {name: fields[name] for name in _NEEDED_SIZES}
    taken |= {name: fields.get(name, default) for name, default in _DEFAULTS.items()}
    taken |= {name: float(taken[name]) for name in _NUMBERS}
    return LlamaConfig(**taken, rope_theta=float(rope.theta), rope_scaling=rope.scaling)


def config_json(model: LlamaConfig, *, dtype: str, token_ids: Mapping[str, int | None]) -> str:
    """The text of config.json, which transformers 4 and 5 read as the same model.

    Args:
        dtype: of the weights, by NumPy's name.
        token_ids: of ``bos``, ``eos`` and ``pad``; what is not given is null, since an absent id would
            mean transformers' default, some token of another vocabulary.
    """
    fields = {
        "architectures": [_ARCHITECTURE],
        "model_type": "llama",
        **{name: getattr(model, name) for name in (*_NEEDED_SIZES, *_DEFAULTS)},
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        **write_rope(model.rope_theta, model.rope_scaling),
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "use_cache": True,
        **{f"{name}_token_id": token_ids.get(name) for name in ("bos", "eos", "pad")},
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    return json.dumps(fields, indent=2, sort_keys=True, allow_nan=False) + "\n"


def _value_faults(fields: Mapping[str, Any]) -> Iterator[str]:
    """Of fields that are taken over, and of those that must have a certain value."""
    if "model_type" not in fields:
        yield "model_type is missing; it must be 'llama'"
    for name in _NEEDED_SIZES:
        if name not in fields:
            yield f"{name} is missing"
    for name in _SIZES:
        value = fields.get(name, 1)
        may_be_null = name in _DEFAULTS and _DEFAULTS[name] is None
        is_size = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not is_size and not (value is None and may_be_null):
            yield f"{name}={short(repr(value))} must be a whole number above 0"
        elif is_size and value > _LARGEST_SIZE:
            yield f"{name}={short(repr(value))} is too large; it must be at most {_LARGEST_SIZE}"
    for name in _NUMBERS:
        if name in fields and not is_number(fields[name]):
            yield f"{name}={short(repr(fields[name]))} must be a number"
    if not isinstance(fields.get(_SWITCH, False), bool):
        yield f"{_SWITCH}={fields[_SWITCH]!r} must be true or false"
    for name, allowed in _ALLOWED.items():
        if name in fields and fields[name] not in allowed:
            yield f"{name}={short(json.dumps(fields[name]))} is not supported, only {json.dumps(allowed[0])}"


def _unknown_faults(fields: Mapping[str, Any]) -> Iterator[str]:
    known = {*_NEEDED_SIZES, *_DEFAULTS, *OLD_FIELDS, NEW_FIELD, *_ALLOWED, *_HARMLESS}
    for name, value in fields.items():
        if name not in known:
            yield f"{name}={short(json.dumps(value))} is not known, and may change the model"
