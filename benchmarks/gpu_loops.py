"""What a loop costs whose number of trips only the device knows: on a GPU the host reads it on every trip.

Where all stages are equally long, the number of layers is static (pipeline/loops.py). Here one device has two
chunks, once of equal length, once of which one has a layer more: the same layers, microbatches and ticks.
"""

import time
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from benchmarks.gpu_speed import (
    NOT_BEGUN,
    Workload,
    build_on_one_rank,
    executor_program,
    task_of,
    tokens_of,
)
from benchmarks.programs import pipelined_step
from benchmarks.timing import ratios, spread, time_in_turn
from jaxpipe.lowering import lower
from jaxpipe.models.attention import attention_for
from jaxpipe.models.llama_stage import llama_contract


def measure(
    workload: Workload, platform: str, *, num_rounds: int, deadline: float
) -> Iterator[dict[str, Any]]:
    """A row for each, in turn; nothing is begun after ``deadline`` (of ``time.monotonic``)."""
    if time.monotonic() > deadline:
        yield NOT_BEGUN
        return
    half = workload.model.num_hidden_layers // 2
    stages = {"static": (half, half), "dynamic": (half + 1, half - 1)}
    contract = llama_contract(workload.model, attention_for(platform, jnp.bfloat16))
    table = lower(build_on_one_rank("interleaved", workload), fuse_backward=True)
    task = task_of(workload)
    steps = {
        trips: pipelined_step(
            executor_program(workload, contract, table, "full", layers_per_stage=layers), task
        )
        for trips, layers in stages.items()
    }
    seconds = time_in_turn({trips: step.run for trips, step in steps.items()}, num_rounds)
    for trips, step in steps.items():
        time_of, ratio = spread(seconds[trips]), ratios(seconds[trips], seconds["static"])
        yield {
            "trips": trips,
            "layers_per_stage": stages[trips],
            "compile_seconds": round(step.compiled.seconds, 2),
            "step_seconds": round(time_of.median, 5),
            "step_seconds_min": round(time_of.min, 5),
            "step_seconds_max": round(time_of.max, 5),
            "tokens_per_second": round(tokens_of(workload) / time_of.median, 1),
            "ratio_to_static": round(ratio.median, 4),
            "ratio_min": round(ratio.min, 4),
            "ratio_max": round(ratio.max, 4),
        }
