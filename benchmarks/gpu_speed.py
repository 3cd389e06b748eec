"""What a step costs on one device, through the executor and un-pipelined; gpu_check.py has the formulas."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from benchmarks.programs import ReadyStep, Task, pipelined_step, random_text, unpipelined_step
from benchmarks.timing import Spread, ratios, spread, time_in_turn
from jaxpipe.lowering import lower
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
from jaxpipe.schedules import build
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
            num_hidden_layers=2,
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
    """A row for each remat and each program; nothing is begun after ``deadline`` (of ``time.monotonic``)."""
    attention = attention_for(platform, jnp.bfloat16)
    contract = llama_contract(workload.model, attention)
    flops = flops_per_token(workload.model, workload.sequence_length)
    for remat, variants in VARIANTS.items():
        if time.monotonic() > deadline:
            yield {"remat": remat, "ok": False, "error": "not begun, since the time was up"}
            continue
        steps = _compile(workload, contract, remat, variants)
        seconds = time_in_turn({name: step.run for name, step in steps.items()}, num_rounds)
        for name, step in steps.items():
            row = _row(step, spread(seconds[name]), _tokens(workload), flops, peak_tflops)
            ratio = ratios(seconds[name], seconds["unpipelined"])
            yield {"program": name, "remat": remat, "attention": attention} | row | _ratio(ratio)


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


def _compile(
    workload: Workload, contract: StageContract, remat: Remat, variants: tuple[bool, ...]
) -> dict[str, ReadyStep]:
    """The un-pipelined step and the executor's, by name."""
    model = workload.model
    text = random_text(
        workload.num_microbatches,
        workload.batch,
        sequence_length=workload.sequence_length,
        vocab_size=model.vocab_size,
    )
    task = Task(
        lambda: init_llama(model, 0),
        lambda: llama_constants(model, workload.sequence_length),
        OPTIMIZER,
        text,
    )
    order = build("1f1b", num_ranks=1, num_microbatches=workload.num_microbatches)
    layout = Layout(order.placement, balanced_layers(model.num_hidden_layers, 1), model.vocab_size)
    mesh = jax.make_mesh(
        (1, 1, 1), ("dp", "pp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:1]
    )
    plain = mixed_precision_reference(contract, recompute=remat != "none")
    steps = {"unpipelined": unpipelined_step(plain, task)}
    for fuse in variants:
        settings = Settings(remat, jnp.bfloat16)
        program = Program(contract, lower(order, fuse_backward=fuse), layout, mesh, settings)
        steps["executor, BW" if fuse else "executor, B and W"] = pipelined_step(program, task)
    return steps


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


def _ratio(ratio: Spread) -> dict[str, float]:
    return {
        "ratio_to_unpipelined": round(ratio.median, 4),
        "ratio_min": round(ratio.min, 4),
        "ratio_max": round(ratio.max, 4),
    }


def _tokens(workload: Workload) -> int:
    return workload.num_microbatches * workload.batch * workload.sequence_length
