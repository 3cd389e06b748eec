"""Is the executor right on this device? Held against the same functions on CPU, in fp32."""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from benchmarks.gpu_speed import NOT_BEGUN
from benchmarks.programs import random_text
from jaxpipe.lowering import lower
from jaxpipe.models.attention import Implementation, attention_for, causal_attention
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import (
    Batch,
    Layout,
    LossAndGradients,
    Program,
    Settings,
    Tree,
    balanced_layers,
    make_loss_and_gradients,
    to_canonical_layout,
    to_stage_layout,
)
from jaxpipe.pipeline.remat import Remat
from jaxpipe.schedules import build
from jaxpipe.training.reference import reference_loss_and_gradients

ATTENTION_TOLERANCE = 0.02
"""Of an array's norm. bf16 rounds to 2^-9, and so are the softmax's weights inside the kernels."""
FP32_TOLERANCE = 1e-4
"""Of a leaf's largest value: fp32 products on both sides, summed in another order."""
BF16_TOLERANCE = 0.05
"""Of a leaf's norm: roundings of 2^-9 through three layers and back."""

MODEL = LlamaConfig(
    vocab_size=500,
    hidden_size=256,
    intermediate_size=384,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
)
SEQUENCE_LENGTH = 128

Run = tuple[str, bool, Remat]
"""Schedule, ``fuse_backward``, remat."""

RUNS: tuple[Run, ...] = (
    ("gpipe", True, "full"),
    ("1f1b", True, "none"),
    ("1f1b", False, "selective"),
    ("zb_h1", False, "full"),
)


def check_attention(platform: str) -> Iterator[dict[str, Any]]:
    """Each implementation in bf16 against the written-out one in fp32: output and three gradients."""
    shapes = {"q": (2, 256, 8, 64), "k": (2, 256, 2, 64), "v": (2, 256, 2, 64), "dy": (2, 256, 8, 64)}
    key = jax.random.key(0)
    q, k, v, dy = (
        jax.random.normal(jax.random.fold_in(key, number), shape, jnp.bfloat16)
        for number, shape in enumerate(shapes.values())
    )

    def run(implementation: Implementation, *arrays: jax.Array) -> list[np.ndarray]:
        *inputs, cotangent = arrays
        attention = jax.jit(lambda *qkv: causal_attention(*qkv, implementation=implementation))
        y, pullback = jax.vjp(attention, *inputs)
        return [np.asarray(array, np.float32) for array in (y, *pullback(cotangent))]

    with jax.default_matmul_precision("highest"):
        exact = run("einsum", *(array.astype(jnp.float32) for array in (q, k, v, dy)))
    implementations: list[Implementation] = ["xla", "cudnn"] if platform == "gpu" else ["xla"]
    for implementation in implementations:
        ours = run(implementation, q, k, v, dy)
        errors = [_norm_error(a, b) for a, b in zip(ours, exact, strict=True)]
        yield _verdict(
            {"implementation": implementation, "dtype": "bfloat16", "parts": "y dq dk dv"},
            max(errors),
            ATTENTION_TOLERANCE,
        )


def check_executor(
    platform: str, runs: Sequence[Run] = RUNS, *, deadline: float = math.inf
) -> Iterator[dict[str, Any]]:
    """Loss and gradients of each run, in fp32 and in bf16, against the un-pipelined ones on CPU in fp32.

    The greatest error of them all counts; ``loss_error`` is the loss's own, relative. Nothing is begun after
    ``deadline`` (of ``time.monotonic``).
    """
    with jax.default_device(jax.devices("cpu")[0]):
        batch = _batch()
        params = jax.tree.map(np.asarray, init_llama(MODEL, seed=0))
        reference = jax.jit(reference_loss_and_gradients, static_argnums=0)(
            llama_contract(MODEL, "einsum"), params, batch, llama_constants(MODEL, SEQUENCE_LENGTH)
        )
    for schedule, fuse, remat in runs:
        for dtype in (jnp.float32, jnp.bfloat16):
            if time.monotonic() > deadline:
                yield {"schedule": schedule, "remat": remat, "dtype": jnp.dtype(dtype).name} | NOT_BEGUN
                continue
            attention = attention_for(platform, dtype)
            precision = "highest" if dtype == jnp.float32 else None
            with jax.default_matmul_precision(precision):
                ours = _through_executor(
                    params,
                    batch,
                    schedule=schedule,
                    fuse=fuse,
                    settings=Settings(remat, dtype),
                    attention=attention,
                )
            facts = {
                "schedule": schedule,
                "fuse_backward": fuse,
                "remat": remat,
                "dtype": jnp.dtype(dtype).name,
                "attention": attention,
                "loss": float(ours.loss),
                "reference_loss": float(reference.loss),
                "loss_error": _largest_error(ours.loss, reference.loss),
            }
            exact = dtype == jnp.float32
            error = _tree_error(ours, reference, _largest_error if exact else _norm_error)
            yield _verdict(facts, error, FP32_TOLERANCE if exact else BF16_TOLERANCE)


def _through_executor(
    params: Tree, batch: Batch, *, schedule: str, fuse: bool, settings: Settings, attention: Implementation
) -> LossAndGradients:
    """Loss and canonical gradients, on the first device."""
    order = build(schedule, num_ranks=1, num_microbatches=len(batch.tokens))
    layout = Layout(order.placement, balanced_layers(MODEL.num_hidden_layers, 1), MODEL.vocab_size)
    mesh = jax.make_mesh(
        (1, 1, 1), ("dp", "pp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:1]
    )
    table = lower(order, fuse_backward=fuse)
    program = Program(llama_contract(MODEL, attention), table, layout, mesh, settings)
    arguments = (to_stage_layout(params, layout), batch, llama_constants(MODEL, SEQUENCE_LENGTH))
    on_device = jax.device_put(arguments, NamedSharding(mesh, PartitionSpec()))
    ours = jax.jit(make_loss_and_gradients(program))(*on_device)
    return ours._replace(gradients=to_canonical_layout(ours.gradients, layout))


def _batch() -> Batch:
    """Three microbatches, of which the second has few valid labels and the third none."""
    text = random_text(3, 2, sequence_length=SEQUENCE_LENGTH, vocab_size=MODEL.vocab_size)
    labels = text[..., 1:].copy()
    labels[1, :, 5:], labels[2] = -1, -1
    return Batch(jnp.asarray(text[..., :-1]), jnp.asarray(labels), {})


def _verdict(facts: dict[str, Any], error: float, tolerance: float) -> dict[str, Any]:
    return facts | {"error": error, "tolerance": tolerance, "ok": bool(error <= tolerance)}


def _tree_error(ours: LossAndGradients, reference: LossAndGradients, error) -> float:
    leaves = jax.tree.leaves(jax.tree.map(error, ours.gradients, reference.gradients))
    return max(*leaves, error(ours.loss, reference.loss))


def _largest_error(ours: jax.Array, exact: jax.Array) -> float:
    """The largest difference, relative to the largest value."""
    a, b = np.asarray(ours, np.float64), np.asarray(exact, np.float64)
    return float(np.max(np.abs(a - b)) / np.max(np.abs(b)))


def _norm_error(ours: jax.Array | np.ndarray, exact: jax.Array | np.ndarray) -> float:
    """The norm of the difference, relative to the norm."""
    a, b = np.asarray(ours, np.float64), np.asarray(exact, np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
