"""What a run says about itself before it starts: mesh, parameters, schedule, and where the memory goes."""

import math

import jax
import numpy as np
from jax.sharding import Mesh

from jaxpipe.config import Config, DataConfig
from jaxpipe.data import Sources
from jaxpipe.lowering import TickTable
from jaxpipe.lowering.table import BACKWARD_WEIGHT
from jaxpipe.models.flops import flops_per_token
from jaxpipe.pipeline import Batch, Tree, to_stage_layout
from jaxpipe.schedules import fuse_backward, simulate, split_backward
from jaxpipe.training.memory import StepMemory, step_memory
from jaxpipe.training.plan import Plan
from jaxpipe.training.slotted_step import SlottedStep
from jaxpipe.units import format_bytes

Fact = tuple[str, str]


def text_facts(corpus: Sources, data: DataConfig) -> list[Fact]:
    """How much text there is, its tokenizer, how documents are packed, and of a mixture the shares."""
    tokenizer = corpus.tokenizer
    end = f" ({tokenizer.end_of_document_token})" if tokenizer.end_of_document_token else ""
    packing = (
        "isolated: attention, positions and labels stay within each"
        if data.isolate_documents
        else "behind each other, and not isolated: attention and labels cross from one into the next"
    )
    ids = f"{tokenizer.name}, {tokenizer.vocab_size:,} ids"
    facts = [
        ("text", corpus.summary),
        ("tokenizer", f"{ids}, {tokenizer.end_of_document}{end} ends a document"),
        ("documents", packing),
    ]
    if corpus.weights is not None:
        total = sum(corpus.weights)
        sources = zip(corpus.weights, corpus.training, strict=True)
        shares = [f"{weight / total:.1%} {row.name}" for weight, row in sources]
        facts.append(("mixture", ", ".join(shares)))
    return facts


def layout_facts(config: Config, plan: Plan, mesh: Mesh) -> list[Fact]:
    """Mesh, parameters, FLOPs, layers of each stage, schedule with its predicted bubble, and the slots."""
    params = jax.eval_shape(plan.init_params)
    layout, table = plan.program.layout, plan.program.table
    device = mesh.devices.flat[0]
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    batch = config.train.global_batch_size // config.pipeline.num_microbatches
    return [
        ("mesh", f"{axes} on {mesh.size} {device.platform} devices ({device.device_kind})"),
        ("parameters", f"{_count(params):,}"),
        ("FLOPs per token", f"{flops_per_token(config.model, config.data.sequence_length):,}"),
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
    """Bytes per device by part and together, from shapes alone: nothing is compiled or allocated."""
    memory = _step_memory(plan, batch, widens=False)
    parts = {
        "master weights": memory.weights,
        "optimizer moments": memory.moments,
        "batch and tables": memory.arguments,
        "weights in compute dtype": memory.compute_weights,
        "gradient accumulators": memory.accumulators,
        "residuals": memory.residuals,
        "linear inputs": memory.linear_inputs,
        "weight-gradient inputs": memory.weight_inputs,
        "inbox and messages": memory.messages,
    }
    if memory.layer_inputs:
        parts["layer inputs"] = memory.layer_inputs
    work = ", ".join(f"{name} {format_bytes(size)}" for name, size in memory.work.items())
    facts = [
        *((name, format_bytes(size)) for name, size in parts.items()),
        ("work of a tick", f"{format_bytes(max(memory.work.values()))}, the largest of {work}"),
        ("logits", f"{format_bytes(memory.logits)}, part of the head's work"),
        *_padding_facts(memory),
        *_after_ticks(memory),
        ("together", f"{format_bytes(memory.total)} per device"),
    ]
    here = _step_memory(plan, batch).total
    if here > memory.total:
        facts.append(
            ("as compiled here", f"{format_bytes(here)}: XLA for CPU makes fp32 of bf16 (docs/memory.md)")
        )
    return facts


def _after_ticks(memory: StepMemory) -> list[Fact]:
    """What the sums of gradients need, where it counts and not what is there while the ticks run."""
    if memory.after_ticks <= memory.ticks:
        return []
    reduction = format_bytes(memory.reduction)
    return [
        ("sums after the ticks", f"{reduction}, when weights in compute dtype and work of a tick are gone")
    ]


def padding_facts(plan: Plan, batch: Batch) -> list[Fact]:
    """What uneven stages cost in memory; nothing where all have the same number of layers."""
    return [] if plan.program.layout.is_even else _padding_facts(_step_memory(plan, batch))


def compiled_facts(step: SlottedStep, seconds: float) -> list[Fact]:
    """How long it took to compile the step, and what it takes on each device, as the compiler counts it."""
    facts = [("compiled in", f"{seconds:.1f} s")]
    memory = step.compiled.memory_analysis()
    if memory is None:
        return facts
    text = (
        f"{format_bytes(memory.argument_size_in_bytes - step.slot_bytes)} state and batch, "
        f"{format_bytes(step.slot_bytes)} slots and gradients, "
        f"{format_bytes(memory.temp_size_in_bytes)} temporary"
    )
    return [*facts, ("bytes per device", text)]


def _schedule(plan: Plan) -> str:
    """At F = B = W: the bubble of the order, and of the program, whose neighbours wait for each other."""
    table = plan.program.table
    kinds = set(np.unique(table.ranks.kind))
    program = fuse_backward(plan.schedule) if BACKWARD_WEIGHT in kinds else split_backward(plan.schedule)
    order = simulate(plan.schedule).bubble_fraction
    specialised = plan.program.settings.specialised
    lowered = simulate(
        program, sync="neighbor", transfer_ticks=table.transfer_ticks, specialised=specialised
    ).bubble_fraction
    ticks = f"ticks in {len(plan.program.segments)} segments" if specialised else "ticks"
    bubbles = f"predicted bubble {order:.1%}, as ticks {lowered:.1%}"
    return f"{plan.schedule.name}: {table.num_ticks} {ticks}, {bubbles}"


def _slots(table: TickTable) -> str:
    counts = {
        "inbox": table.num_inbox_slots,
        "residuals": table.num_residual_slots,
        "weight inputs": table.num_weight_slots,
    }
    if table.recomputes:
        counts["layer inputs"] = table.num_recompute_slots
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _step_memory(plan: Plan, batch: Batch, *, widens: bool | None = None) -> StepMemory:
    params = jax.eval_shape(lambda: to_stage_layout(plan.init_params(), plan.program.layout))
    constants = jax.eval_shape(plan.make_constants)
    return step_memory(plan.program, params, batch, constants, widens=widens)


def _padding_facts(memory: StepMemory) -> list[Fact]:
    if not any(memory.padding):
        return []
    state, step, stash = map(format_bytes, memory.padding)
    text = f"{state} of state, {step} of weights and accumulators, {stash} of stash; it costs no compute"
    return [("padding of uneven stages", f"on the rank with most {text}")]


def _count(tree: Tree) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
