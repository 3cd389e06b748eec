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
        low = f"{'above' if self.low_open else 'at least'} {self.low:g}"
        return (
            low
            if self.high == math.inf
            else f"{low} and {'below' if self.high_open else 'at most'} {self.high:g}"
        )


_COUNT = Range(1)
_ZERO_OR_MORE = Range(0)
_POSITIVE = Range(0, low_open=True)
_BELOW_ONE = Range(0, 1, high_open=True)

RANGES: Mapping[str, Range] = {
    "model.vocab_size": Range(257),
    "model.hidden_size": _COUNT,
    "model.intermediate_size": _COUNT,
    "model.num_hidden_layers": _COUNT,
    "model.num_attention_heads": _COUNT,
    "model.num_key_value_heads": _COUNT,
    "model.head_dim": _COUNT,
    "model.rms_norm_eps": _POSITIVE,
    "model.rope_theta": _POSITIVE,
    "model.rope_scaling.factor": Range(1),
    "model.rope_scaling.low_freq_factor": _POSITIVE,
    "model.rope_scaling.high_freq_factor": _POSITIVE,
    "model.rope_scaling.original_max_position_embeddings": _COUNT,
    "model.max_position_embeddings": _COUNT,
    "model.initializer_range": _POSITIVE,
    "data.sequence_length": _COUNT,
    "data.validation_fraction": _BELOW_ONE,
    "mesh.dp": _COUNT,
    "mesh.pp": _COUNT,
    "mesh.tp": _COUNT,
    "pipeline.num_microbatches": _COUNT,
    "pipeline.num_chunks": _COUNT,
    "train.num_steps": _COUNT,
    "train.global_batch_size": _COUNT,
    "train.eval_every": _ZERO_OR_MORE,
    "train.eval_batches": _COUNT,
    "optimizer.learning_rate": _POSITIVE,
    "optimizer.min_learning_rate_ratio": Range(0, 1),
    "optimizer.warmup_steps": _ZERO_OR_MORE,
    "optimizer.decay_steps": _COUNT,
    "optimizer.beta1": _BELOW_ONE,
    "optimizer.beta2": _BELOW_ONE,
    "optimizer.eps": _POSITIVE,
    "optimizer.weight_decay": _ZERO_OR_MORE,
    "optimizer.max_grad_norm": _ZERO_OR_MORE,
    "checkpoint.every": _ZERO_OR_MORE,
    "checkpoint.keep": _COUNT,
    "run.seed": Range(0, 2**32 - 1),
    "run.log_every": _COUNT,
}


def range_faults(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """``(path, sentence)`` for each number out of its range and each text that is empty."""
    for path, value in values.items():
        allowed = RANGES.get(path)
        if value == "":
            yield path, f"{path} must not be empty"
        elif allowed is None or value is None:
            continue
        elif not math.isfinite(value):
            yield path, f"{path}={value} must be finite"
        elif not allowed.holds(value):
            note = (
                ": a byte-level vocabulary has 256 bytes and one separator"
                if path == "model.vocab_size"
                else ""
            )
            yield path, f"{path}={value} must be {allowed}{note}"
