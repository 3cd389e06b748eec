"""The rules between keys, and those that ask the schedules or the files: what one range cannot say.

Each rule names the keys it reads and gets their values; where one of them is faulty already, the rule
waits, so that every fault is told once and no rule computes with nonsense.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxpipe.config.curve_rules import check_tensorboard, check_wandb
from jaxpipe.config.keys import flatten
from jaxpipe.config.mesh_rules import (
    check_mesh,
    check_sequence_parallel,
    check_tensor_parallelism,
    check_zero,
)
from jaxpipe.config.model_rules import (
    LLAMA3_ALONE,
    check_head_dim,
    check_kv_heads,
    check_linear_scaling,
    check_rope_scaling,
    check_sequence,
)
from jaxpipe.config.numbers import either, multiples
from jaxpipe.config.process_rules import IDENTITY, check_coordinator, check_devices, check_identity
from jaxpipe.config.ranges import range_faults
from jaxpipe.config.schedule_choice import AUTO, ScheduleChoice, chunks_of, find_choice_faults
from jaxpipe.config.sections import Config
from jaxpipe.config.text_rules import (
    check_files,
    check_fraction,
    check_sample,
    check_tokenizer,
    check_vocabulary,
    check_weights,
)


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


@dataclass(frozen=True)
class _Rule:
    """``check`` gets the values at ``paths`` and yields what is wrong with them."""

    paths: tuple[str, ...]
    check: Callable[..., Iterator[str]]


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


def _schedule_recompute(schedule_recompute: bool, remat: str) -> Iterator[str]:
    if schedule_recompute and remat != "full":
        yield (
            f"pipeline.schedule_recompute is for pipeline.remat=full, which does a whole layer again, found "
            f"{remat}; use full, or leave it out"
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


def _trace_step(step: int | None, num_steps: int) -> Iterator[str]:
    if step is not None and step > num_steps:
        yield (
            f"run.trace_step={step} must be at most train.num_steps={num_steps}, since no later step is run; "
            "use an earlier one, or more steps"
        )


def _batch(key: str, batch_size: int, num_microbatches: int, dp: int) -> Iterator[str]:
    if batch_size % (num_microbatches * dp):
        sizes = multiples(batch_size, num_microbatches * dp)
        yield (
            f"{key}={batch_size} must be a multiple of pipeline.num_microbatches="
            f"{num_microbatches} x mesh.dp={dp} = {num_microbatches * dp}; use {either(sizes)}"
        )


_CHOICE = (
    "pipeline.schedule",
    "mesh.pp",
    "pipeline.num_microbatches",
    "pipeline.num_chunks",
    "pipeline.reverse_backward",
    "pipeline.memory_limit",
    "pipeline.transfer_ticks",
    "pipeline.fuse_backward",
    "pipeline.schedule_recompute",
    "model.num_hidden_layers",
)
"""The fields of ``ScheduleChoice``."""

_RULES = (
    _Rule(("model.num_attention_heads", "model.num_key_value_heads"), check_kv_heads),
    _Rule(("model.head_dim", "model.hidden_size", "model.num_attention_heads"), check_head_dim),
    _Rule(
        tuple(f"model.rope_scaling.{name}" for name in ("low_freq_factor", "high_freq_factor", "rope_type")),
        check_rope_scaling,
    ),
    _Rule(("model.rope_scaling.rope_type", *LLAMA3_ALONE), check_linear_scaling),
    _Rule(("data.sequence_length", "model.max_position_embeddings"), check_sequence),
    _Rule(("data.path",), check_files),
    _Rule(("data.weights", "data.path"), check_weights),
    _Rule(("data.validation_fraction", "data.path", "train.eval_every"), check_fraction),
    _Rule(("data.tokenizer", "data.path", "data.end_of_document"), check_tokenizer),
    _Rule(("model.vocab_size", "data.tokenizer", "data.path", "data.end_of_document"), check_vocabulary),
    _Rule(("mesh.dp", "mesh.pp", "mesh.tp"), check_mesh),
    _Rule(
        ("mesh.tp", "model.num_attention_heads", "model.num_key_value_heads", "model.intermediate_size"),
        check_tensor_parallelism,
    ),
    _Rule(("mesh.sequence_parallel", "mesh.tp", "data.sequence_length"), check_sequence_parallel),
    _Rule(("mesh.zero", "mesh.dp", "model.hidden_size"), check_zero),
    _Rule(("distributed.coordinator",), check_coordinator),
    _Rule(IDENTITY, check_identity),
    _Rule(("distributed.num_processes", "mesh.dp", "mesh.pp", "mesh.tp"), check_devices),
    _Rule(_CHOICE, _schedule),
    _Rule(("pipeline.schedule_recompute", "pipeline.remat"), _schedule_recompute),
    _Rule(("pipeline.layers_per_stage", *_CHOICE), _layers),
    _Rule(("pipeline.layers_per_stage", *_CHOICE), _layers_per_stage),
    _Rule(("train.global_batch_size", "pipeline.num_microbatches", "mesh.dp"), _global_batch),
    _Rule(("train.eval_batch_size", "pipeline.num_microbatches", "mesh.dp"), _eval_batch),
    _Rule(("checkpoint.keep_best", "train.eval_every"), _keep_best),
    _Rule(("train.sample_prompt", "train.eval_every"), _sample),
    _Rule(
        (
            "train.sample_prompt",
            "train.sample_tokens",
            "model.max_position_embeddings",
            "data.tokenizer",
            "data.path",
            "data.end_of_document",
        ),
        check_sample,
    ),
    _Rule(("run.trace_step", "train.num_steps"), _trace_step),
    _Rule(("run.tensorboard",), check_tensorboard),
    _Rule(("run.wandb",), check_wandb),
)
