"""The values that a single key may take, whatever the others are."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """From ``low`` to ``high``; an end that is ``open`` is not part of it."""

    low: float
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def holds(self, value: float) -> bool:
        """Whether a finite ``value`` lies within."""
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def __str__(self) -> str:
        low = f"{'above' if self.low_open else 'at least'} {self.low}"
        return (
            low
            if self.high == math.inf
            else f"{low} and {'below' if self.high_open else 'at most'} {self.high}"
        )


# Far above what anyone trains, and low enough that what is computed from them stays small until JAX starts.
_LARGEST_SIZE = 2**20
_LARGEST_COUNT = 2**16
_LONGEST = 2**24
_MOST_STEPS = 2**31 - 1

_COUNT = Range(1, _LARGEST_COUNT)
_SIZE = Range(1, _LARGEST_SIZE)
_LENGTH = Range(1, _LONGEST)
_STEPS = Range(1, _MOST_STEPS)
_ZERO_OR_MORE_STEPS = Range(0, _MOST_STEPS)
_ZERO_OR_MORE = Range(0)
_POSITIVE = Range(0, low_open=True)
_BELOW_ONE = Range(0, 1, high_open=True)

RANGES: Mapping[str, Range] = {
    "model.vocab_size": _LENGTH,
    "model.hidden_size": _SIZE,
    "model.intermediate_size": _SIZE,
    "model.num_hidden_layers": _COUNT,
    "model.num_attention_heads": _COUNT,
    "model.num_key_value_heads": _COUNT,
    "model.head_dim": _COUNT,
    "model.rms_norm_eps": _POSITIVE,
    "model.rope_theta": _POSITIVE,
    "model.rope_scaling.factor": Range(1),
    "model.rope_scaling.low_freq_factor": _POSITIVE,
    "model.rope_scaling.high_freq_factor": _POSITIVE,
    "model.rope_scaling.original_max_position_embeddings": _LENGTH,
    "model.max_position_embeddings": _LENGTH,
    "model.initializer_range": _POSITIVE,
    "data.sequence_length": _LENGTH,
    "data.validation_fraction": _BELOW_ONE,
    "mesh.dp": _COUNT,
    "mesh.pp": _COUNT,
    "mesh.tp": _COUNT,
    "pipeline.num_microbatches": _COUNT,
    "pipeline.num_chunks": Range(1, 1024),
    "pipeline.memory_limit": _COUNT,
    "train.num_steps": _STEPS,
    "train.global_batch_size": _LENGTH,
    "train.eval_every": _ZERO_OR_MORE_STEPS,
    "train.eval_batches": _LENGTH,
    "train.eval_batch_size": _LENGTH,
    "train.sample_tokens": _LENGTH,
    "train.sample_temperature": Range(0, 1000),
    "train.sample_top_p": Range(0, 1, low_open=True),
    "train.max_skipped_steps": _STEPS,
    "optimizer.learning_rate": _POSITIVE,
    "optimizer.min_learning_rate_ratio": Range(0, 1),
    "optimizer.warmup_steps": _ZERO_OR_MORE_STEPS,
    "optimizer.decay_steps": _STEPS,
    "optimizer.beta1": _BELOW_ONE,
    "optimizer.beta2": _BELOW_ONE,
    "optimizer.eps": _POSITIVE,
    "optimizer.weight_decay": _ZERO_OR_MORE,
    "optimizer.max_grad_norm": _ZERO_OR_MORE,
    "checkpoint.every": _ZERO_OR_MORE_STEPS,
    "checkpoint.keep": _STEPS,
    "run.seed": Range(0, 2**32 - 1),
    "run.log_every": _STEPS,
    "run.peak_flops": _POSITIVE,
    "run.step_timeout": _LENGTH,
    "run.stop_timeout": _LENGTH,
    "run.trace_step": Range(4, _MOST_STEPS),
    "distributed.num_processes": _COUNT,
    "distributed.process_id": Range(0, _LARGEST_COUNT - 1),
    "distributed.timeout": Range(5, _LONGEST),
}


def range_faults(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """``(path, sentence)`` for each number out of its range and each text that is empty."""
    for path, value in values.items():
        allowed = RANGES.get(path)
        if value == "":
            yield path, f"{path} must not be empty"
        elif isinstance(value, tuple) and "" in value:
            yield path, f"{path} must hold no empty text"
        elif allowed is None or value is None:
            continue
        elif not math.isfinite(value):
            yield path, f"{path}={value} must be finite"
        elif not allowed.holds(value):
            yield path, f"{path}={value} must be {allowed}"
