"""What a run says about itself before it starts: mesh, parameters, schedule, and where the memory goes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxpipe.config import Config
from jaxpipe.lowering import TickTable
from jaxpipe.lowering.table import BACKWARD_WEIGHT
from jaxpipe.pipeline import Batch, Tree, buffer_shapes, to_stage_layout
from jaxpipe.pipeline.layout import VOCABULARY_GROUPS
from jaxpipe.schedules import fuse_backward, simulate, split_backward
from jaxpipe.training.plan import Plan

Fact = tuple[str, str]


def layout_facts(config: Config, plan: Plan, mesh: Mesh) -> list[Fact]:
    """Mesh, parameters, layers of each stage, the schedule with its predicted bubble, and the slots."""
    params = jax.eval_shape(plan.init_params)
    layout, table = plan.program.layout, plan.program.table
    device = mesh.devices.flat[0]
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    batch = config.train.global_batch_size // config.pipeline.num_microbatches
    return [
        ("mesh", f"{axes} on {mesh.size} {device.platform} devices ({device.device_kind})"),
        ("parameters", f"{_count(params):,}"),
        ("layers per stage", " ".join(map(str, layout.layers_per_stage))),
        (
            "batch",
            f"{config.train.global_batch_size} x {config.data.sequence_length} tokens a step, in "
            f"{config.pipeline.num_microbatches} microbatches of {batch}",
        ),
        ("schedule", _schedule(plan)),
        ("slots per rank", _slots(table)),
    ]


def memory_facts(plan: Plan, batch: Batch) -> list[Fact]:
    """Bytes per device by part, computed from shapes alone: nothing is compiled or allocated."""
    params = jax.eval_shape(lambda: to_stage_layout(plan.init_params(), plan.program.layout))
    constants = jax.eval_shape(plan.make_constants)
    buffers = buffer_shapes(plan.program, params, batch, constants)
    num_ranks = plan.program.layout.placement.num_ranks
    everywhere = _bytes(params["final"])
    weights = everywhere + (_bytes(params) - everywhere) // num_ranks
    vocabulary = plan.program.layout.padded_vocab_size // num_ranks
    tokens = math.prod(batch.tokens.shape[1:]) // plan.program.mesh.shape["dp"]
    parts = {
        "master weights": weights,
        "optimizer moments": 2 * weights,
        "gradient accumulators": _bytes((buffers.layer_gradients, buffers.ends)),
        "weights in compute dtype": _compute_weights(plan, params),
        "residuals": _bytes(buffers.residuals),
        "weight-gradient inputs": _bytes((buffers.linear_inputs, buffers.weight_inputs)),
        "inbox and messages": _bytes((buffers.inbox, buffers.message, buffers.travelling)),
        "logits": 4 * vocabulary * min(tokens, plan.program.settings.head_tokens),
    }
    facts = [(name, format_bytes(size)) for name, size in parts.items()]
    return [
        *facts,
        ("together", f"{format_bytes(sum(parts.values()))} per device, without one layer's own work"),
    ]


def compiled_facts(compiled: jax.stages.Compiled, seconds: float) -> list[Fact]:
    """How long it took to compile the step, and what it takes on each device, as the compiler counts it."""
    facts = [("compiled in", f"{seconds:.1f} s")]
    memory = compiled.memory_analysis()
    if memory is None:
        return facts
    text = (
        f"{format_bytes(memory.argument_size_in_bytes)} state and batch, "
        f"{format_bytes(memory.temp_size_in_bytes)} temporary"
    )
    return [*facts, ("bytes per device", text)]


def format_bytes(size: float) -> str:
    """Bytes in binary units: 1536 is 1.5 KiB."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def _schedule(plan: Plan) -> str:
    """At F = B = W: the bubble of the order, and of the program, whose neighbours wait for each other."""
    table = plan.program.table
    kinds = set(np.unique(table.ranks.kind))
    program = fuse_backward(plan.schedule) if BACKWARD_WEIGHT in kinds else split_backward(plan.schedule)
    order = simulate(plan.schedule).bubble_fraction
    lowered = simulate(program, sync="neighbor", transfer_ticks=table.transfer_ticks).bubble_fraction
    return (
        f"{plan.schedule.name}: {table.num_ticks} ticks, predicted bubble {order:.1%}, as ticks {lowered:.1%}"
    )


def _slots(table: TickTable) -> str:
    counts = {
        "inbox": table.num_inbox_slots,
        "residuals": table.num_residual_slots,
        "weight inputs": table.num_weight_slots,
    }
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _compute_weights(plan: Plan, params: Tree) -> int:
    """A copy in bf16, and of layers one for each of two pipes; nothing where the master weights serve."""
    dtype, placement = plan.program.settings.compute_dtype, plan.program.layout.placement
    layers, num_pipes = params["layers"], placement.num_pipes
    size = 0
    if dtype != jnp.float32:
        size += dtype.itemsize * _count([params[group] for group in VOCABULARY_GROUPS if group in params])
    if dtype != jnp.float32 or num_pipes > 1:
        size += dtype.itemsize * num_pipes * _count(layers["kernels"])
    if num_pipes > 1:
        size += num_pipes * _bytes(layers["small"])
    return size // placement.num_ranks


def _count(tree: Tree) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def _bytes(tree: Tree) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
