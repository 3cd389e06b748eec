"""What the parts of a step take by a file of measured costs, also of other sizes than were measured.

An action takes as long for each token and, over ``tp``, for each share of a layer, as was measured. What
devices tell each other that no measurement holds goes by bytes: at the rate of the measured message, or
by the links of a device that is known.

Emulated devices share the cores of one machine: nothing travels beside the work, so messages are part of
their tick, and what several devices do at once takes ``sharing`` times as long. The executor sends a message
up and one down in each tick, one after the other.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxpipe.planning.collectives import Links
from jaxpipe.planning.communication import (
    PerLayer,
    ends_seconds,
    once_a_step,
    tensor_seconds,
    transfer_seconds,
    zero_seconds,
)
from jaxpipe.planning.costs_file import MeasuredCosts, action_seconds
from jaxpipe.planning.estimated_costs import LATENCY, LINK
from jaxpipe.planning.hardware import Hardware, find_hardware
from jaxpipe.planning.layouts import Layout, Task
from jaxpipe.planning.part_seconds import Line, PartSeconds
from jaxpipe.planning.sizes import device_parameters
from jaxpipe.schedules.costs import LEAST

_LAYER_SHAPE = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
"""What a layer and both ends cost depends on."""


def find_cost_faults(costs: MeasuredCosts, task: Task) -> list[str]:
    """Where the costs are of something else than the task: as rule, values and remedy."""
    model = {name: getattr(task.model, name) for name in _LAYER_SHAPE if name in costs.model}
    sizes = {"compute_dtype": task.compute_dtype, "sequence_length": task.sequence_length}
    found = [
        f"{fault}; measure with `jaxpipe profile` of this configuration"
        for fault in differences(costs, model, sizes)
    ]
    if costs.transfer == 0 and task.num_devices > 1 and find_hardware(costs.device_kind) is None:
        found.append(
            f"costs are of one rank alone, so nobody knows what messages of {task.num_devices} devices cost; "
            "measure with `jaxpipe profile` and mesh.pp of at least 2"
        )
    return found


def differences(costs: MeasuredCosts, model: Mapping[str, Any], sizes: Mapping[str, Any]) -> Iterator[str]:
    """Each key of the model, and each field of the file, in which the costs are of something else."""
    for name, here in model.items():
        if costs.model.get(name) != here:
            yield f"costs are of a model of {name}={costs.model.get(name)}, but here it is {here}"
    for name, here in sizes.items():
        if getattr(costs, name) != here:
            yield f"costs are of {name}={getattr(costs, name)}, but here it is {here}"


def hardware_of(costs: MeasuredCosts) -> Hardware:
    """As known; of another device the links are as fast as the measured message."""
    known = find_hardware(costs.device_kind)
    if known is not None:
        return known
    rate = costs.message_bytes / max(costs.transfer, LEAST)
    return Hardware(costs.device_kind, 0.0, 0.0, rate, rate, costs.num_devices)


def sharing_of(costs: MeasuredCosts) -> tuple[float, ...]:
    """Only emulated devices share anything; on others what was measured is noise around 1."""
    return costs.sharing if costs.platform == "cpu" else (1.0,)


def measured_parts(task: Task, layout: Layout, costs: MeasuredCosts) -> PartSeconds:
    """Of a layout on the devices that were measured."""
    known = find_hardware(costs.device_kind)
    links = Links(hardware_of(costs), LINK, LATENCY) if known else Links(hardware_of(costs), 1.0, 0.0)
    size = task.tokens(layout) / costs.tokens * costs.tp / layout.tp
    tensor = tensor_seconds(task, layout, links) if layout.tp != costs.tp else PerLayer(0.0, 0.0, 0.0, 0.0)
    zero = zero_seconds(task, layout, links)
    more = {"F": tensor.F + zero.F, "B": tensor.B + tensor.again + zero.B, "W": tensor.W + zero.W}
    more["BW"] = more["B"] + more["W"]
    actions = {kind: _line(costs, kind, layout, size=size, more=more[kind]) for kind in more}
    without = action_seconds(costs, "B", remat="none", num_layers=1) * size
    ends, once = ends_seconds(task, layout, links), once_a_step(task, layout, links)
    ends_size = task.tokens(layout) / costs.tokens
    # with two ranks both neighbours are one, and so is the hop
    transfer = transfer_seconds(task, layout, links) * (1 if layout.pp == 2 else 2)
    sharing = sharing_of(costs)
    is_emulated = any(times != 1 for times in sharing)
    own = device_parameters(task, layout) / (layout.dp if layout.zero else 1)
    return PartSeconds(
        actions=actions,
        recomputation=max(actions["B"].at(1) - more["B"] - without, 0.0),
        tensor=tensor.F + tensor.B + tensor.W + tensor.again,
        shards=zero.F + zero.B + zero.W,
        head=costs.head * ends_size / (layout.pp * layout.tp) + ends.head,
        embedding=costs.embedding * ends_size / (layout.pp * layout.tp) + ends.embedding,
        unembedding=costs.embedding * ends_size / (layout.pp * layout.tp) + ends.unembedding,
        transfer=0.0 if is_emulated else transfer,
        tick=costs.tick + (transfer if is_emulated else 0.0),
        before=once.before,
        reduction=once.after,
        update=costs.update_per_parameter * own,
        sharing=sharing,
    )


def _line(costs: MeasuredCosts, kind: str, layout: Layout, *, size: float, more: float) -> Line:
    one, two = (action_seconds(costs, kind, remat=layout.remat, num_layers=count) for count in (1, 2))
    return Line(max(2 * one - two, 0.0) * size, (two - one) * size + more)
