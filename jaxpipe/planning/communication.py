"""What the devices tell each other in a step, in seconds: docs/meshes.md as formulas.

t tokens of a microbatch, d the hidden size, e bytes of a number that is computed with. Sums are fp32.
"""

from typing import NamedTuple

from jaxpipe.planning.collectives import (
    Links,
    copies_of,
    gather_seconds,
    message_seconds,
    one_pipeline,
    ranks_of,
    sharing_a_rank,
    sum_seconds,
)
from jaxpipe.planning.layouts import Layout, Task
from jaxpipe.planning.sizes import device_parameters, kernel_parameters, stage_layers

TWO_PIPES = frozenset({"chimera", "dualpipe"})
"""The schedules that hold a second copy of the layers while a step runs."""


class PerLayer(NamedTuple):
    """Seconds of a layer and microbatch in each kind of action; ``again`` is what B repeats of F's."""

    F: float
    B: float
    W: float
    again: float


class OfEnds(NamedTuple):
    """Seconds of a microbatch at each end of the pipe."""

    embedding: float
    head: float
    unembedding: float


class OnceAStep(NamedTuple):
    """Seconds before and after the ticks."""

    before: float
    after: float


def tensor_seconds(task: Task, layout: Layout, links: Links) -> PerLayer:
    """Over ``tp``: two kernels of columns and two of rows in a layer (pipeline/products.py)."""
    group, size = sharing_a_rank(layout), task.tokens(layout) * task.model.hidden_size
    if not layout.sequence_parallel:
        total = sum_seconds(links, group, 4 * size)
        return PerLayer(2 * total, 2 * total, 0.0, total if layout.remat == "full" else 0.0)
    gather = gather_seconds(links, group, task.itemsize * size)
    scatter = gather_seconds(links, group, 4 * size)
    there = 2 * (gather + scatter)
    return PerLayer(there, there, 4 * gather, 2 * gather + scatter if layout.remat == "full" else 0.0)


def zero_seconds(task: Task, layout: Layout, links: Links) -> PerLayer:
    """Over ``dp``, of a layer: ZeRO 3 gathers its weights, 2 and 3 scatter its gradient."""
    group, size = copies_of(layout), kernel_parameters(task.model) / layout.tp
    gather = gather_seconds(links, group, task.itemsize * size) if layout.zero == 3 else 0.0
    scatter = gather_seconds(links, group, 4 * size) if layout.zero >= 2 else 0.0
    return PerLayer(gather, gather, scatter, 0.0)


def ends_seconds(task: Task, layout: Layout, links: Links) -> OfEnds:
    """Over the devices of a pipeline, which share the vocabulary (pipeline/end_axes.py)."""
    size = task.tokens(layout) * task.model.hidden_size
    shared = sum_seconds(links, ranks_of(layout), task.itemsize * size / layout.shares)
    if layout.shares > 1:
        shared += gather_seconds(links, sharing_a_rank(layout), task.itemsize * size)
    return OfEnds(
        embedding=sum_seconds(links, one_pipeline(layout), task.itemsize * size),
        head=shared + sum_seconds(links, one_pipeline(layout), 4 * size),
        unembedding=shared,
    )


def transfer_seconds(task: Task, layout: Layout, links: Links) -> float:
    """Of a message to a neighbour."""
    size = task.tokens(layout) * task.model.hidden_size / layout.shares
    return message_seconds(links, ranks_of(layout), task.itemsize * size)


def once_a_step(task: Task, layout: Layout, links: Links) -> OnceAStep:
    """Weights put together or copied to the second pipe before the ticks, and their gradients' way back."""
    size, copies = device_parameters(task, layout), copies_of(layout)
    before = gather_seconds(links, copies, task.itemsize * size) if layout.zero in (1, 2) else 0.0
    after = sum_seconds(links, copies, 4 * size) if layout.zero == 0 else 0.0
    after += gather_seconds(links, copies, 4 * size) if layout.zero == 1 else 0.0
    if layout.schedule in TWO_PIPES:
        layers = layout.num_chunks * max(stage_layers(task, layout)) * kernel_parameters(task.model)
        before += message_seconds(links, ranks_of(layout), task.itemsize * layers / layout.tp)
        after += message_seconds(links, ranks_of(layout), 4 * layers / layout.tp)
    return OnceAStep(before, after)
