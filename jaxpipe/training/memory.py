"""What a training step holds on each device, by part, from shapes alone: nothing is compiled or allocated.

    lasting      master weights and moments (fp32), batch and tables: the arguments, overwritten in place
    for a step   weights in the compute dtype, accumulators, and the slots of the schedule (buffers.py)
    for a tick   what one action, or one end of the pipe, works with: of these only one runs at a time

Together that is what the compiler asks for, within a few percent (tests/training/test_memory.py). After the
ticks there are the accumulators, the slots, which stay for the next step, and what gradients are added up in
over ``dp``; where that is more, it counts.

XLA for CPU multiplies no bf16: it keeps kernels as fp32, and makes fp32 of all slots that an action reads.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from jaxpipe.lowering.table import BACKWARD, BACKWARD_WEIGHT, FORWARD, RECOMPUTE, WEIGHT
from jaxpipe.pipeline import Batch, Program, Tree, buffer_shapes, make_loss_and_gradients
from jaxpipe.pipeline.buffers import Buffers
from jaxpipe.pipeline.contract import VOCABULARY_GROUPS
from jaxpipe.pipeline.sharding import stage_shardings
from jaxpipe.training.liveness import held_at_once


class Padding(NamedTuple):
    """Bytes that a device holds for layers that its rank does not have, because another stage is longer.

    state: of master weights and moments. step: of weights and accumulators. stash: of what waits for B and W.
    """

    state: int
    step: int
    stash: int


class StepMemory(NamedTuple):
    """Bytes on one device.

    arguments: batch and tables.
    compute_weights: copies in the compute dtype, of both pipes; 0 where the master weights serve.
    residuals, linear_inputs, weight_inputs: what F leaves for B, F for W, and B for W; with R, it is R that
        leaves the first two.
    layer_inputs: what F leaves for R.
    messages: the inbox, and what is on its way.
    work: of each kind of action and each end of the pipe, what it holds while it runs.
    logits: those of ``work["head"]``.
    reduction: of the sums over ``dp`` after the ticks, beside the accumulators.
    padding: of what is counted above, on the rank that has most of it.
    """

    weights: int
    moments: int
    arguments: int
    compute_weights: int
    accumulators: int
    residuals: int
    linear_inputs: int
    weight_inputs: int
    layer_inputs: int
    messages: int
    work: Mapping[str, int]
    logits: int
    reduction: int
    padding: Padding

    @property
    def lasting(self) -> int:
        return self.weights + self.moments + self.arguments

    @property
    def stash(self) -> int:
        return self.residuals + self.linear_inputs + self.weight_inputs + self.layer_inputs

    @property
    def ticks(self) -> int:
        """The most that is held while the ticks run, beside what lasts."""
        for_a_step = self.compute_weights + self.accumulators + self.stash + self.messages
        return for_a_step + max(self.work.values())

    @property
    def after_ticks(self) -> int:
        """The same when the ticks are over and their gradients are added up."""
        return self.accumulators + self.stash + self.messages + self.reduction

    @property
    def total(self) -> int:
        return self.lasting + max(self.ticks, self.after_ticks)


def step_memory(
    program: Program, params: Tree, batch: Batch, constants: Tree, *, widens: bool | None = None
) -> StepMemory:
    """The memory of a step; the arguments are shapes, the parameters in stage layout.

    widens: whether the compiler makes fp32 of bf16; as it does on the program's devices, if left out.
    """
    # a table's segments hold what the scan over all its rows does
    program = program._replace(settings=program.settings._replace(specialised=False))
    if widens is None:
        widens = program.mesh.devices.flat[0].platform == "cpu"
    buffers = buffer_shapes(program, params, batch, constants)
    shards = _shards(program, params)
    return StepMemory(
        weights=_bytes(shards),
        moments=2 * _bytes(shards),
        arguments=_bytes(batch) // program.mesh.shape["dp"] + _bytes(constants),
        compute_weights=_compute_weights(program, shards["layers"], widens)
        + _compute_vocabulary(program, shards),
        accumulators=_bytes((buffers.layer_gradients, buffers.ends)),
        residuals=_bytes(buffers.residuals),
        linear_inputs=_bytes(buffers.linear_inputs),
        weight_inputs=_bytes(buffers.weight_inputs),
        layer_inputs=_bytes(buffers.layer_inputs),
        messages=_bytes((buffers.inbox, buffers.message, buffers.travelling)),
        work=_work(program, params, batch, constants, widens=widens),
        logits=_logits(program, batch),
        reduction=_reduction(program, buffers),
        padding=_padding(program, shards, buffers, widens=widens),
    )


def _shards(program: Program, params: Tree) -> Tree:
    """What one device has of the parameters."""
    shardings = stage_shardings(params, program.mesh, program.layout.sharding)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(sharding.shard_shape(leaf.shape), leaf.dtype),
        params,
        shardings,
    )


def _copies(program: Program) -> int:
    """How often the weights of this device's shard are there while the ticks run."""
    sharding, num_pipes = program.layout.sharding, program.layout.placement.num_pipes
    return num_pipes * (program.mesh.shape["dp"] if sharding.zero in (1, 2) else 1)


def _compute_weights(program: Program, layers: Tree, widens: bool) -> int:
    """Of layers; each pipe has its own. Norm scales are never cast, and no shards."""
    dtype, num_pipes = program.settings.compute_dtype, program.layout.placement.num_pipes
    are_gathered = program.layout.sharding.zero in (1, 2)
    small = num_pipes * _bytes(layers["small"]) if are_gathered or num_pipes > 1 else 0
    if dtype == jnp.float32 and not small:
        return 0
    return _copies(program) * _itemsize(dtype, widens) * _count(layers["kernels"]) + small


def _compute_vocabulary(program: Program, shards: Tree) -> int:
    """Of embedding and head; both pipes read the same."""
    dtype, zero = program.settings.compute_dtype, program.layout.sharding.zero
    if dtype == jnp.float32 and zero not in (1, 2):
        return 0
    count = _count([shards[group] for group in VOCABULARY_GROUPS if group in shards])
    return count * dtype.itemsize * (program.mesh.shape["dp"] if zero in (1, 2) else 1)


def _logits(program: Program, batch: Batch) -> int:
    """fp32, of one chunk of tokens and this device's rows of the vocabulary."""
    mesh = program.mesh.shape
    rows = program.layout.padded_vocab_size // (mesh["pp"] * mesh.get("tp", 1))
    tokens = math.prod(batch.tokens.shape[1:]) // mesh["dp"]
    return 4 * rows * min(tokens, program.settings.head_tokens)


def _work(program: Program, params: Tree, batch: Batch, constants: Tree, *, widens: bool) -> dict[str, int]:
    """What each loop of a tick holds, from the jaxpr of the step."""
    names = ["unembed", "head", "embed"]
    kinds = {FORWARD: "F", RECOMPUTE: "R", BACKWARD: "B", WEIGHT: "W", BACKWARD_WEIGHT: "BW"}
    names += [name for kind, name in kinds.items() if kind in program.kinds]
    ticks = _ticks(jax.make_jaxpr(make_loss_and_gradients(program))(params, batch, constants).jaxpr)
    loops = _loops(ticks)
    assert len(loops) == len(names), "a tick has other loops than its actions and ends"
    work: dict[str, int] = {}
    for index, name in enumerate(names):
        held = _held_by(loops[index], widens)
        if widens:
            held += _widened_slots(ticks, loops[index])
        work[name] = held
    if program.layout.padded_vocab_size > program.layout.vocab_size:
        work["head"] += _logits(program, batch)  # XLA keeps them with the mask of padding and without it
    return work


def _ticks(step: Jaxpr) -> JaxprEqn:
    """The scan over ticks: the one scan inside ``shard_map`` whose body has loops."""
    (mapped,) = (eqn for eqn in step.eqns if eqn.primitive.name == "shard_map")
    scans = (eqn for eqn in mapped.params["jaxpr"].eqns if eqn.primitive.name == "scan")
    (ticks,) = (scan for scan in scans if _loops(scan))
    return ticks


def _loops(scan: JaxprEqn) -> list[JaxprEqn]:
    return [eqn for eqn in scan.params["jaxpr"].jaxpr.eqns if eqn.primitive.name == "while"]


def _held_by(loop: JaxprEqn, widens: bool) -> int:
    num_read = loop.params["body_nconsts"]
    body = loop.params["body_jaxpr"]
    carried = range(num_read, len(body.jaxpr.invars))
    return held_at_once(body, carried, lambda array: array.size * _itemsize(array.dtype, widens))


def _widened_slots(ticks: JaxprEqn, loop: JaxprEqn) -> int:
    """The fp32 copies of slots that this loop of a tick reads, as far as they are written before it."""
    given = set(ticks.params["jaxpr"].jaxpr.invars[: ticks.params["num_consts"]])
    first, num_read = loop.params["cond_nconsts"], loop.params["body_nconsts"]
    atoms = loop.invars[first : first + num_read]
    read: set[Any] = {atom for atom in atoms if not isinstance(atom, Literal)}
    slots = [atom.aval for atom in read - given]
    return sum(4 * slot.size for slot in slots if _itemsize(slot.dtype, True) > slot.dtype.itemsize)


def _itemsize(dtype: np.dtype, widens: bool) -> int:
    """Bytes of a number that is being worked with."""
    return max(dtype.itemsize, 4) if widens and jnp.issubdtype(dtype, jnp.floating) else dtype.itemsize


def _reduction(program: Program, buffers: Buffers) -> int:
    """What is summed over ``dp``, and what of the second pipe comes home, lies beside what it is made of."""
    zero, dp = program.layout.sharding.zero, program.mesh.shape["dp"]
    num_pipes = program.layout.placement.num_pipes
    layers = _bytes(buffers.layer_gradients) // num_pipes
    coming_home = layers if num_pipes > 1 else 0
    is_summed = "dp" in program.axes and zero < 2
    summed = layers + _bytes(buffers.ends) // num_pipes if is_summed else 0
    return max(coming_home, summed // (dp if zero == 1 else 1))


def _padding(program: Program, shards: Tree, buffers: Buffers, *, widens: bool) -> Padding:
    """A rank's slots serve all its chunks: of their padding, the mean over them."""
    layout = program.layout
    layers, num_chunks = layout.layers_of_chunk(), layout.placement.num_chunks

    def share(layers: np.ndarray) -> float:
        return float(max(1 - layers.sum(axis=1) / (layers.shape[1] * layout.max_layers)))

    weights = _compute_weights(program, shards["layers"], widens)
    stash = _bytes((buffers.residuals, buffers.linear_inputs, buffers.weight_inputs, buffers.layer_inputs))
    return Padding(
        state=round(share(layers[:, :num_chunks]) * 3 * _bytes(shards["layers"])),
        step=round(share(layers) * (weights + _bytes(buffers.layer_gradients))),
        stash=round(share(layers) * stash),
    )


def _count(tree: Tree) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def _bytes(tree: Tree) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
