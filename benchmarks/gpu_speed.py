"""What a step costs on one device, through the executor and un-pipelined; gpu_check.py has the formulas."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from benchmarks.programs import (
    ReadyStep,
    Task,
    pipelined_shapes,
    pipelined_step,
    random_text,
    unpipelined_step,
)
from benchmarks.timing import Spread, ratios, spread, time_in_turn
from jaxpipe.lowering import TickTable, lower
from jaxpipe.models.attention import attention_for
from jaxpipe.models.flops import flops_per_token
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import (
    Batch,
    Layout,
    LossAndGradients,
    Program,
    Settings,
    StageContract,
    Tree,
    balanced_layers,
)
from jaxpipe.pipeline.remat import Remat
from jaxpipe.schedules import Schedule, build
from jaxpipe.training.memory import step_memory
from jaxpipe.training.optimizer import AdamW
from jaxpipe.training.reference import reference_loss

OPTIMIZER = AdamW(
    learning_rate=1e-4,
    min_ratio=0.1,
    warmup_steps=0,
    decay_steps=1000,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    weight_decay=0.1,
    max_grad_norm=1.0,
)

VARIANTS: dict[Remat, tuple[bool, ...]] = {"full": (True, False), "none": (True,)}
"""Remat, and the values of ``fuse_backward`` that are tried with it."""

BEST_VARIANT = "executor, BW"
"""A device without neighbours gains nothing from splitting B and W."""

MOST_OVER_UNPIPELINED = 1.03

MEMORY_TOLERANCE = 0.1
"""Of the bytes that the compiler counts: what ``--dry-run`` promises (docs/memory.md)."""

NOT_BEGUN = {"ok": False, "error": "not begun, since the time was up"}


class Workload(NamedTuple):
    """A model and the tokens of a step."""

    model: LlamaConfig
    sequence_length: int
    batch: int
    num_microbatches: int


WORKLOADS = {
    "1b": Workload(
        LlamaConfig(
            vocab_size=32768,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
        ),
        sequence_length=2048,
        batch=4,
        num_microbatches=4,
    ),
    "tiny": Workload(
        LlamaConfig(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
        ),
        sequence_length=64,
        batch=2,
        num_microbatches=2,
    ),
}


def measure(
    workload: Workload, platform: str, *, peak_tflops: float, num_rounds: int, deadline: float
) -> Iterator[dict[str, Any]]:
    """A row for each remat and each program; nothing is begun after ``deadline`` (of ``time.monotonic``).

    Of the executor's a row more: the bytes that the compiler counts, and those that were predicted.
    """
    for remat in VARIANTS:
        if time.monotonic() > deadline:
            yield {"remat": remat} | NOT_BEGUN
        else:
            rows = _measure_remat(workload, platform, remat, peak_tflops=peak_tflops, num_rounds=num_rounds)
            yield from rows  # at its end the states of its steps are freed


def _measure_remat(
    workload: Workload, platform: str, remat: Remat, *, peak_tflops: float, num_rounds: int
) -> Iterator[dict[str, Any]]:
    attention = attention_for(platform, jnp.bfloat16)
    contract = llama_contract(workload.model, attention)
    task, order = task_of(workload), build_on_one_rank("1f1b", workload)
    programs = {
        BEST_VARIANT if fuse else "executor, B and W": executor_program(
            workload, contract, lower(order, fuse_backward=fuse), remat
        )
        for fuse in VARIANTS[remat]
    }
    plain = mixed_precision_reference(contract, recompute=remat != "none")
    steps = {"unpipelined": unpipelined_step(plain, task)}
    steps |= {name: pipelined_step(program, task) for name, program in programs.items()}
    seconds = time_in_turn({name: step.run for name, step in steps.items()}, num_rounds)
    flops = flops_per_token(workload.model, workload.sequence_length)
    for name, step in steps.items():
        row = _row(step, spread(seconds[name]), tokens_of(workload), flops, peak_tflops)
        ratio = ratios(seconds[name], seconds["unpipelined"])
        facts = {"program": name, "remat": remat, "attention": attention}
        yield facts | row | ratio_figures(ratio) | _ratio_verdict(name, ratio, platform)
    for name, program in programs.items():
        yield {"program": name, "remat": remat} | memory_figures(program, task, steps[name])


def _ratio_verdict(name: str, ratio: Spread, platform: str) -> dict[str, Any]:
    """Whether the executor is fast enough; a CPU that tries the check itself is not judged."""
    if platform == "cpu" or name != BEST_VARIANT:
        return {}
    return {"most": MOST_OVER_UNPIPELINED, "ok": ratio.median <= MOST_OVER_UNPIPELINED}


def memory_figures(program: Program, task: Task, step: ReadyStep) -> dict[str, Any]:
    """What a device holds as predicted from shapes, against what the compiler counts."""
    shapes = pipelined_shapes(program, task)
    predicted = step_memory(program, shapes.state.params, shapes.batch, shapes.constants).total
    compiled = step.compiled.total_bytes
    error = predicted / compiled - 1
    return {
        "predicted_bytes": predicted,
        "compiled_bytes": compiled,
        "error": round(error, 4),
        "tolerance": MEMORY_TOLERANCE,
        "ok": abs(error) <= MEMORY_TOLERANCE,
    }


def mixed_precision_reference(
    contract: StageContract, *, recompute: bool
) -> Callable[[Tree, Batch, Tree], LossAndGradients]:
    """The un-pipelined loss and gradients in bf16, with fp32 weights and accumulators like the executor's."""

    def loss_and_gradients(params: Tree, batch: Batch, constants: Tree) -> LossAndGradients:
        weights = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        num_tokens = jnp.sum(batch.labels >= 0, dtype=jnp.int32)
        scale = 1.0 / jnp.maximum(num_tokens, 1).astype(jnp.float32)

        def step(carry: tuple[jax.Array, Tree], microbatch: Batch) -> tuple[tuple[jax.Array, Tree], None]:
            loss, gradients = carry
            alone = jax.tree.map(lambda leaf: leaf[None], microbatch)

            def scaled_loss(weights: Tree) -> jax.Array:
                return scale * reference_loss(contract, weights, alone, constants, recompute=recompute)[0]

            value, new = jax.value_and_grad(scaled_loss)(weights)
            gradients = jax.tree.map(lambda total, part: total + part.astype(jnp.float32), gradients, new)
            return (loss + value, gradients), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        (loss, gradients), _ = jax.lax.scan(step, (jnp.zeros(()), zeros), batch)
        return LossAndGradients(loss, num_tokens, gradients)

    return loss_and_gradients


def task_of(workload: Workload) -> Task:
    """A workload's step, on random text."""
    model = workload.model
    text = random_text(
        workload.num_microbatches,
        workload.batch,
        sequence_length=workload.sequence_length,
        vocab_size=model.vocab_size,
    )
    return Task(
        lambda: init_llama(model, 0),
        lambda: llama_constants(model, workload.sequence_length),
        OPTIMIZER,
        text,
    )


def build_on_one_rank(schedule: str, workload: Workload) -> Schedule:
    """The order of a workload's microbatches on the one device."""
    return build(schedule, num_ranks=1, num_microbatches=workload.num_microbatches)


def executor_program(
    workload: Workload,
    contract: StageContract,
    table: TickTable,
    remat: Remat,
    *,
    layers_per_stage: tuple[int, ...] | None = None,
) -> Program:
    """The program of a table in bf16 on the first device; stages as even as can be, if not given."""
    model, num_stages = workload.model, table.placement.num_stages
    layers = layers_per_stage or balanced_layers(model.num_hidden_layers, num_stages)
    mesh = jax.make_mesh(
        (1, 1, 1), ("dp", "pp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:1]
    )
    layout = Layout(table.placement, layers, model.vocab_size)
    return Program(contract, table, layout, mesh, Settings(remat, jnp.dtype(jnp.bfloat16)))


def _row(step: ReadyStep, seconds: Spread, tokens: int, flops: float, peak_tflops: float) -> dict[str, Any]:
    tokens_per_second = tokens / seconds.median
    return {
        "compile_seconds": round(step.compiled.seconds, 2),
        "temp_bytes": step.compiled.temp_bytes,
        "step_seconds": round(seconds.median, 5),
        "step_seconds_min": round(seconds.min, 5),
        "step_seconds_max": round(seconds.max, 5),
        "tokens_per_second": round(tokens_per_second, 1),
        "model_flops_per_token": flops,
        "mfu": round(tokens_per_second * flops / (peak_tflops * 1e12), 4),
        "peak_tflops": peak_tflops,
    }


def ratio_figures(ratio: Spread) -> dict[str, float]:
    """Over the un-pipelined step."""
    return {
        "ratio_to_unpipelined": round(ratio.median, 4),
        "ratio_min": round(ratio.min, 4),
        "ratio_max": round(ratio.max, 4),
    }


def tokens_of(workload: Workload) -> int:
    """Of a step."""
    return workload.num_microbatches * workload.batch * workload.sequence_length
