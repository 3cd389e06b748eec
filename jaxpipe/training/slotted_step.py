"""The training step as a run does it: its slots and accumulators stay allocated from step to step.

Filled anew in each step they would cost time, on CPU above all (docs/performance.md). Between steps they are
idle, so whoever wants the memory for something else, an evaluation or a save, takes them away.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from jaxpipe.pipeline import Batch, Program, Tree, make_empty_slots, make_loss_and_gradients_in_slots
from jaxpipe.pipeline.buffers import Slots
from jaxpipe.pipeline.executor import Timed
from jaxpipe.training.devices import compiler_options
from jaxpipe.training.grad_norm import make_global_norm
from jaxpipe.training.optimizer import AdamW
from jaxpipe.training.state import TrainState, state_shardings
from jaxpipe.training.step import StepMetrics, make_update


class SlottedStep:
    """``(state, batch, constants) -> (state, metrics)``, compiled; it takes over the memory of the state.

    Of a timed one the metrics are ``(metrics, stamps)``.
    """

    def __init__(
        self, compiled: jax.stages.Compiled, make_slots: Callable[[], Slots], slot_bytes: int
    ) -> None:
        self.compiled = compiled
        self.slot_bytes = slot_bytes
        """Of the slots and accumulators of one device."""
        self._make_slots = make_slots
        self._slots: Slots | None = None

    def __call__(self, state: TrainState, batch: Batch, constants: Tree) -> tuple[TrainState, Any]:
        self.allocate()
        slots, self._slots = self._slots, None  # donated, so they are gone even if the step fails
        state, metrics, self._slots = self.compiled(state, batch, constants, slots)
        return state, metrics

    def allocate(self) -> None:
        """Make the slots, if there are none; the next step would, too."""
        if self._slots is None:
            self._slots = jax.block_until_ready(self._make_slots())

    def release(self) -> None:
        """Give their memory back; the next step allocates them again."""
        self._slots = None


def compile_slotted_step(
    program: Program,
    settings: AdamW,
    state: TrainState,
    batch: Batch,
    *,
    constants: Tree,
    skip_non_finite: bool = False,
    timed: bool = False,
    options: Mapping[str, Any] | None = None,
) -> SlottedStep:
    """Of arguments of these shapes and shardings.

    timed: with marks (pipeline/tick_clock.py), whose stamps come beside the metrics.
    options: XLA's, beside the usual ones (``devices.compiler_options``).
    """
    mesh, layout = program.mesh, program.layout
    loss_and_gradients = make_loss_and_gradients_in_slots(program, timed=timed)
    update = make_update(
        settings, global_norm=make_global_norm(layout, mesh), skip_non_finite=skip_non_finite
    )

    def train_step(
        state: TrainState, batch: Batch, constants: Tree, slots: Slots
    ) -> tuple[TrainState, StepMetrics | tuple[StepMetrics, Array], Slots]:
        result, slots = loss_and_gradients(state.params, batch, constants, slots)
        if isinstance(result, Timed):
            state, metrics = update(state, result.result)
            return state, (metrics, result.stamps), slots
        return *update(state, result), slots

    make_slots = make_empty_slots(program, state.params, batch, constants)
    shapes = jax.eval_shape(make_slots)
    shardings = (
        state_shardings(state, mesh, layout.sharding),
        NamedSharding(mesh, PartitionSpec()),
        jax.tree.map(lambda leaf: leaf.sharding, shapes),
    )
    jitted = jax.jit(train_step, donate_argnums=(0, 3), out_shardings=shardings, keep_unused=True)
    lowered = jitted.lower(state, batch, constants, shapes)
    platform = mesh.devices.flat[0].platform
    compiled = lowered.compile(compiler_options(platform) | dict(options or {}))
    slot_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes)) // mesh.size
    return SlottedStep(compiled, make_slots, slot_bytes)
