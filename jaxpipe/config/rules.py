"""The rules between keys, and those that ask the schedules or the files: what one range cannot say.

Each rule names the keys it reads and gets their values; where one of them is faulty already, the rule
waits, so that every fault is told once and no rule computes with nonsense.
"""

import math
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxpipe.config.curve_rules import check_tensorboard, check_wandb
from jaxpipe.config.keys import flatten, keys
from jaxpipe.config.process_rules import IDENTITY, check_coordinator, check_devices, check_identity
from jaxpipe.config.ranges import range_faults
from jaxpipe.config.schedule_choice import AUTO, ScheduleChoice, chunks_of, find_choice_faults
from jaxpipe.config.sections import Config
from jaxpipe.config.text_rules import (
    check_files,
    check_fraction,
    check_tokenizer,
    check_vocabulary,
    check_weights,
)

RUN_FILES = ("config.yaml", "metrics.jsonl", "samples.jsonl", "checkpoints")
"""What a run writes, the first of them first; any one shows that a directory is taken."""

_MOST_DEVICES = 65_536


def faults(config: Config) -> list[str]:
    """Everything that is wrong with ``config``, each as one sentence that starts with the key's path."""
    return [message for _, message in value_faults(flatten(config))]


def value_faults(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """``(path, sentence)`` for each fault; a rule whose keys are not all in ``values`` is left out."""
    found = list(range_faults(values))
    faulty = {path for path, _ in found}
    for rule in _RULES:
        if faulty.isdisjoint(rule.paths) and all(path in values for path in rule.paths):
            found += [(rule.paths[0], message) for message in rule.check(*map(values.get, rule.paths))]
    return found


def run_directory_fault(directory: str, *, resume: bool) -> str | None:
    """A new run wants a directory without a run; one that resumes wants a run there."""
    path = Path(directory)
    if obstacle := _obstacle(path):
        return f"run.dir={directory!r} cannot be used: {obstacle}; name a directory that can be written"
    taken = next((name for name in RUN_FILES if (path / name).exists()), None)
    if taken and not resume:
        return (
            f"run.dir={directory} already holds a run (it has {taken}); "
            "name another directory, or give --checkpoint.resume to continue that run"
        )
    if resume and not (path / RUN_FILES[0]).exists():
        return (
            f"run.dir={directory} holds no run to resume (it has no {RUN_FILES[0]}); "
            "correct run.dir, or leave --checkpoint.resume out"
        )
    return None


def _obstacle(path: Path) -> str:
    """Why the directory cannot be made and written, or nothing; asks the nearest place that exists.

    Only an attempt shows that: permissions say nothing of a read-only disk or of /proc. It leaves no trace.
    """
    for place in (path, *path.parents):
        try:
            is_directory = stat.S_ISDIR(os.stat(place).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return _reason(error)
        except ValueError:
            return "a path holds no null character"
        if not is_directory:
            return f"{place} is a file"
        try:
            tempfile.TemporaryFile(dir=place).close()
        except OSError as error:
            return f"nothing can be written to {place.absolute()} ({_reason(error)})"
        return ""
    return "there is no such place"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


@dataclass(frozen=True)
class _Rule:
    """``check`` gets the values at ``paths`` and yields what is wrong with them."""

    paths: tuple[str, ...]
    check: Callable[..., Iterator[str]]


def _kv_heads(num_heads: int, num_kv_heads: int | None) -> Iterator[str]:
    if num_kv_heads is not None and num_heads % num_kv_heads:
        divisors = [count for count in range(1, num_heads + 1) if num_heads % count == 0]
        below = [count for count in divisors if count < num_kv_heads]
        near = _either(below[-1:] + divisors[len(below) :][:1])
        yield (
            f"model.num_attention_heads={num_heads} must be a multiple of "
            f"model.num_key_value_heads={num_kv_heads}; use {near} of the latter"
        )


def _head_dim(head_dim: int | None, hidden_size: int, num_heads: int) -> Iterator[str]:
    if head_dim is not None:
        if head_dim % 2:
            yield f"model.head_dim={head_dim} must be even, since RoPE turns pairs; use {head_dim + 1}"
    elif hidden_size % (2 * num_heads):
        sizes = _multiples(hidden_size, 2 * num_heads)
        yield (
            f"model.hidden_size={hidden_size} must be a multiple of 2 x model.num_attention_heads="
            f"{num_heads}, since RoPE turns pairs; use {_either(sizes)}, or give model.head_dim"
        )


def _rope_scaling(low: float, high: float, kind: str) -> Iterator[str]:
    if kind == "llama3" and low >= high:
        yield (
            f"model.rope_scaling.low_freq_factor={low} must be below "
            f"model.rope_scaling.high_freq_factor={high}; Llama 3.1 has 1 and 4"
        )


def _linear_scaling(kind: str, *values: float) -> Iterator[str]:
    """What linear scaling does not read must be as it is by itself."""
    for path, value in zip(_LLAMA3_ALONE, values, strict=True):
        if kind == "linear" and value != keys()[path].default:
            yield (
                f"model.rope_scaling.rope_type=linear does not read {path}, found {value}; "
                "leave it out, or use llama3"
            )


def _sequence(sequence_length: int, longest: int) -> Iterator[str]:
    if sequence_length > longest:
        yield (
            f"data.sequence_length={sequence_length} must be at most "
            f"model.max_position_embeddings={longest}; shorten the one or raise the other"
        )


def _devices(dp: int, pp: int, tp: int) -> Iterator[str]:
    if dp * pp * tp > _MOST_DEVICES:
        yield (
            f"mesh.dp={dp} x mesh.pp={pp} x mesh.tp={tp} = {dp * pp * tp} devices must be at most "
            f"{_MOST_DEVICES}; use fewer"
        )


def _tensor_parallelism(
    tp: int, num_heads: int, num_kv_heads: int | None, intermediate_size: int
) -> Iterator[str]:
    shared = {
        "model.num_attention_heads": num_heads,
        "model.num_key_value_heads": num_kv_heads,
        "model.intermediate_size": intermediate_size,
    }
    for key, size in shared.items():
        if size is not None and size % tp:
            common = math.gcd(*(size for size in shared.values() if size is not None))
            fitting = [count for count in range(1, min(common, 64) + 1) if common % count == 0]
            yield (
                f"{key}={size} must be a multiple of mesh.tp={tp}, since a device has whole heads and "
                f"as many features as the others; mesh.tp may be {_either(fitting)}"
            )


def _sequence_parallel(sequence_parallel: bool, tp: int, sequence_length: int) -> Iterator[str]:
    if sequence_parallel and tp == 1:
        yield "mesh.sequence_parallel splits the sequence over mesh.tp=1, which changes nothing; leave it out"
    elif sequence_parallel and sequence_length % tp:
        yield (
            f"data.sequence_length={sequence_length} must be a multiple of mesh.tp={tp} with "
            f"mesh.sequence_parallel; use {_either(_multiples(sequence_length, tp))}"
        )


def _zero(zero: int, dp: int, hidden_size: int) -> Iterator[str]:
    if zero and hidden_size % dp:
        yield (
            f"model.hidden_size={hidden_size} must be a multiple of mesh.dp={dp} with mesh.zero={zero}, "
            f"which splits it; use mesh.zero=0, or mesh.dp={_either([_divisor_below(hidden_size, dp)])}"
        )


def _divisor_below(size: int, limit: int) -> int:
    return next(count for count in range(limit, 0, -1) if size % count == 0)


def _schedule(*choice: Any) -> Iterator[str]:
    yield from find_choice_faults(ScheduleChoice(*choice))


def _layers(per_stage: tuple[int, ...] | None, *choice: Any) -> Iterator[str]:
    chosen = ScheduleChoice(*choice)
    num_layers = chosen.num_layers
    num_chunks = chunks_of(chosen)
    if per_stage is None and num_chunks and num_layers < chosen.num_ranks * num_chunks:
        yield (
            f"model.num_hidden_layers={num_layers} must be at least the number of stages, mesh.pp="
            f"{chosen.num_ranks} x {num_chunks} chunks of {chosen.name} = {chosen.num_ranks * num_chunks}; "
            "use more layers or fewer ranks"
        )


def _layers_per_stage(per_stage: tuple[int, ...] | None, *choice: Any) -> Iterator[str]:
    chosen = ScheduleChoice(*choice)
    num_layers, num_chunks = chosen.num_layers, chunks_of(chosen)
    if per_stage is not None and chosen.name == AUTO:
        yield (
            f"pipeline.layers_per_stage={list(per_stage)} cannot be met by {AUTO}, which chooses the number "
            "of stages; name another schedule, or leave it out"
        )
        return
    if per_stage is None or num_chunks is None:
        return
    start = f"pipeline.layers_per_stage={list(per_stage)}"
    if any(count < 1 for count in per_stage):
        yield f"{start} must give each stage at least 1 layer"
    if len(per_stage) != chosen.num_ranks * num_chunks:
        yield (
            f"{start} must have one number a stage, mesh.pp={chosen.num_ranks} x {num_chunks} chunks of "
            f"{chosen.name} = {chosen.num_ranks * num_chunks} in all, found {len(per_stage)}"
        )
    if sum(per_stage) != num_layers:
        yield (
            f"{start} sums to {sum(per_stage)}, but the model has model.num_hidden_layers={num_layers}; "
            "make them equal"
        )


def _global_batch(batch_size: int, num_microbatches: int, dp: int) -> Iterator[str]:
    yield from _batch("train.global_batch_size", batch_size, num_microbatches, dp)


def _eval_batch(batch_size: int | None, num_microbatches: int, dp: int) -> Iterator[str]:
    if batch_size is not None:
        yield from _batch("train.eval_batch_size", batch_size, num_microbatches, dp)


def _keep_best(keep_best: bool, eval_every: int) -> Iterator[str]:
    if keep_best and not eval_every:
        yield (
            "checkpoint.keep_best needs evaluations, but train.eval_every=0 makes none; "
            "give train.eval_every, or leave it out"
        )


def _sample(prompt: str | None, eval_every: int) -> Iterator[str]:
    if prompt is not None and not eval_every:
        yield (
            "train.sample_prompt is continued after each evaluation, but train.eval_every=0 makes none; "
            "give train.eval_every, or leave it out"
        )


def _sample_length(prompt: str | None, num_tokens: int, longest: int) -> Iterator[str]:
    if prompt is not None and num_tokens >= longest:
        yield (
            f"train.sample_tokens={num_tokens} and a prompt must fit into model.max_position_embeddings="
            f"{longest}; use at most {longest - 1}"
        )


def _batch(key: str, batch_size: int, num_microbatches: int, dp: int) -> Iterator[str]:
    if batch_size % (num_microbatches * dp):
        sizes = _multiples(batch_size, num_microbatches * dp)
        yield (
            f"{key}={batch_size} must be a multiple of pipeline.num_microbatches="
            f"{num_microbatches} x mesh.dp={dp} = {num_microbatches * dp}; use {_either(sizes)}"
        )


def _multiples(value: int, unit: int) -> list[int]:
    """The multiples of ``unit`` next to ``value``, below and above."""
    below = value // unit * unit
    return [size for size in (below, below + unit) if size > 0]


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


_CHOICE = (
    "pipeline.schedule",
    "mesh.pp",
    "pipeline.num_microbatches",
    "pipeline.num_chunks",
    "pipeline.reverse_backward",
    "pipeline.memory_limit",
    "pipeline.transfer_ticks",
    "pipeline.fuse_backward",
    "model.num_hidden_layers",
)
"""The fields of ``ScheduleChoice``."""

_LLAMA3_ALONE = (
    "model.rope_scaling.low_freq_factor",
    "model.rope_scaling.high_freq_factor",
    "model.rope_scaling.original_max_position_embeddings",
)

_RULES = (
    _Rule(("model.num_attention_heads", "model.num_key_value_heads"), _kv_heads),
    _Rule(("model.head_dim", "model.hidden_size", "model.num_attention_heads"), _head_dim),
    _Rule(
        tuple(f"model.rope_scaling.{name}" for name in ("low_freq_factor", "high_freq_factor", "rope_type")),
        _rope_scaling,
    ),
    _Rule(("model.rope_scaling.rope_type", *_LLAMA3_ALONE), _linear_scaling),
    _Rule(("data.sequence_length", "model.max_position_embeddings"), _sequence),
    _Rule(("data.path",), check_files),
    _Rule(("data.weights", "data.path"), check_weights),
    _Rule(("data.validation_fraction", "data.path", "train.eval_every"), check_fraction),
    _Rule(("data.tokenizer", "data.path", "data.end_of_document"), check_tokenizer),
    _Rule(("model.vocab_size", "data.tokenizer", "data.path", "data.end_of_document"), check_vocabulary),
    _Rule(("mesh.dp", "mesh.pp", "mesh.tp"), _devices),
    _Rule(
        ("mesh.tp", "model.num_attention_heads", "model.num_key_value_heads", "model.intermediate_size"),
        _tensor_parallelism,
    ),
    _Rule(("mesh.sequence_parallel", "mesh.tp", "data.sequence_length"), _sequence_parallel),
    _Rule(("mesh.zero", "mesh.dp", "model.hidden_size"), _zero),
    _Rule(("distributed.coordinator",), check_coordinator),
    _Rule(IDENTITY, check_identity),
    _Rule(("distributed.num_processes", "mesh.dp", "mesh.pp", "mesh.tp"), check_devices),
    _Rule(_CHOICE, _schedule),
    _Rule(("pipeline.layers_per_stage", *_CHOICE), _layers),
    _Rule(("pipeline.layers_per_stage", *_CHOICE), _layers_per_stage),
    _Rule(("train.global_batch_size", "pipeline.num_microbatches", "mesh.dp"), _global_batch),
    _Rule(("train.eval_batch_size", "pipeline.num_microbatches", "mesh.dp"), _eval_batch),
    _Rule(("checkpoint.keep_best", "train.eval_every"), _keep_best),
    _Rule(("train.sample_prompt", "train.eval_every"), _sample),
    _Rule(
        ("train.sample_prompt", "train.sample_tokens", "model.max_position_embeddings"),
        _sample_length,
    ),
    _Rule(("run.tensorboard",), check_tensorboard),
    _Rule(("run.wandb",), check_wandb),
)
