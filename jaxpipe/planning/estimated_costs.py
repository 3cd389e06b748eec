"""What the parts of a step take by estimate, where nothing was measured: arithmetic and bytes over rates.

A product takes its FLOPs at ``PRODUCTS`` of the peak; what lies between products is bound by memory, at
``MEMORY`` of its rate, and so are gradients that are added up and the optimizer. Nothing overlaps but
messages, as in the program: sums over ``tp`` and ``dp`` are waited for. FLOPs are those of models/flops.py.

The shares below are what large bf16 products, flash attention and NCCL commonly reach on A100 and H100. They
were not measured with this program: a file of costs (``jaxpipe profile``) replaces all of this.
"""

from jaxpipe.planning.collectives import Links
from jaxpipe.planning.communication import (
    PerLayer,
    ends_seconds,
    once_a_step,
    tensor_seconds,
    transfer_seconds,
    zero_seconds,
)
from jaxpipe.planning.hardware import Hardware
from jaxpipe.planning.layouts import Layout, Task
from jaxpipe.planning.part_seconds import Line, PartSeconds
from jaxpipe.planning.sizes import device_parameters, kernel_parameters, vocabulary_rows, widths

PRODUCTS = 0.68
ATTENTION_FORWARD, ATTENTION_BACKWARD = 0.5, 0.42
MEMORY, LINK = 0.8, 0.8
LATENCY = 15e-6
"""Of each operation between devices."""
LAYER, TICK = 40e-6, 60e-6
"""Of each action and layer, and of each tick: what it takes to start their kernels and loops."""

UPDATE_BYTES = 36
"""Read and written for each parameter: gradient three times, weight and both moments there and back."""


def estimated_parts(task: Task, layout: Layout, hardware: Hardware) -> PartSeconds:
    """Of a layout on such devices."""
    links = Links(hardware, LINK, LATENCY)
    work = _work_of_a_layer(task, layout, hardware)
    tensor, zero = tensor_seconds(task, layout, links), zero_seconds(task, layout, links)
    forward = LAYER + work.F + tensor.F + zero.F
    again = work.again + tensor.again
    backward = LAYER + work.B + tensor.B + zero.B + again
    weight = LAYER + work.W + tensor.W + zero.W
    ends, once = ends_seconds(task, layout, links), once_a_step(task, layout, links)
    parameters = device_parameters(task, layout)
    own = parameters / (layout.dp if layout.zero else 1)
    memory = hardware.memory * MEMORY
    look_up = task.itemsize * task.tokens(layout) * task.model.hidden_size
    return PartSeconds(
        actions={
            "F": Line(0.0, forward),
            "B": Line(0.0, backward),
            "W": Line(0.0, weight),
            "BW": Line(0.0, backward + weight - LAYER),
        },
        recomputation=again,
        tensor=tensor.F + tensor.B + tensor.W + tensor.again,
        shards=zero.F + zero.B + zero.W,
        head=_head(task, layout, hardware) + ends.head,
        embedding=2 * look_up / memory + ends.embedding,
        unembedding=4 * look_up / memory + ends.unembedding,
        transfer=transfer_seconds(task, layout, links),
        tick=TICK,
        before=once.before + (4 + task.itemsize) * own / memory,
        reduction=once.after,
        update=UPDATE_BYTES * own / memory,
    )


def _work_of_a_layer(task: Task, layout: Layout, hardware: Hardware) -> PerLayer:
    """Arithmetic and memory alone."""
    model, tokens, tp = task.model, task.tokens(layout), layout.tp
    queries, keys, hidden, inner = widths(model)
    products = hardware.peak * PRODUCTS
    kernels = 2 * tokens * kernel_parameters(model) / tp / products
    last = 2 * tokens * hidden * inner / tp / products
    scores = 2 * queries * (task.sequence_length + 1) * tokens / tp / hardware.peak
    memory = hardware.memory * MEMORY
    # norms and residual sums; RoPE; silu(gate) up
    between = task.itemsize * tokens * (8 * hidden / layout.shares + (2 * (queries + keys) + 3 * inner) / tp)
    between /= memory
    forward = kernels + scores / ATTENTION_FORWARD + between
    repeated = {"full": forward - last, "selective": forward - kernels, "none": 0.0}
    return PerLayer(
        F=forward,
        B=kernels + 2.5 * scores / ATTENTION_BACKWARD + 2 * between,  # five products for forward's two
        W=kernels + 8 * kernel_parameters(model) / tp / memory,  # sums are read and written, fp32
        again=repeated[layout.remat],
    )


def _head(task: Task, layout: Layout, hardware: Hardware) -> float:
    """A device's share of the logits, of both gradients, and of reading and writing them."""
    logits = task.tokens(layout) * vocabulary_rows(task, layout)
    arithmetic = 3 * 2 * task.model.hidden_size * logits / (hardware.peak * PRODUCTS)
    return arithmetic + 4 * 6 * logits / (hardware.memory * MEMORY)
