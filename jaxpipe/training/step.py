"""The compiled programs of a run: one training step, one evaluation of a batch."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int32

from jaxpipe.pipeline.contract import Batch, LossAndGradients, Tree
from jaxpipe.pipeline.sharding import Sharding
from jaxpipe.training.devices import compiler_options
from jaxpipe.training.global_arrays import to_devices
from jaxpipe.training.grad_norm import GradientNorm, norm_as_it_lies
from jaxpipe.training.optimizer import AdamW, apply_gradients
from jaxpipe.training.state import TrainState, state_shardings


class StepMetrics(NamedTuple):
    """What is known of a step, on the device until somebody logs it; the same on every device.

    is_finite: loss and norm are.
    num_updates: since the first step; the steps that were skipped are none.
    squares: what the norm is made of (grad_norm.py), to be read where it is not finite.
    """

    loss: Float[Array, ""]
    grad_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    num_tokens: Int32[Array, ""]
    is_finite: Bool[Array, ""]
    num_updates: Int32[Array, ""]
    squares: Float[Array, " sums"]


def make_train_step(
    loss_and_gradients: Callable[[Tree, Batch, Tree], LossAndGradients],
    settings: AdamW,
    *,
    global_norm: Callable[[Tree], GradientNorm] = norm_as_it_lies,
    skip_non_finite: bool = False,
) -> Callable[[TrainState, Batch, Tree], tuple[TrainState, StepMetrics]]:
    """One step of training, to be compiled by ``compile_step``.

    global_norm: that of the gradients' layout: of the ranks' one, ``make_global_norm``.
    skip_non_finite: a step whose loss or norm is not finite leaves the state as it was (optimizer.py).
    """

    update = make_update(settings, global_norm=global_norm, skip_non_finite=skip_non_finite)

    def train_step(state: TrainState, batch: Batch, constants: Tree) -> tuple[TrainState, StepMetrics]:
        return update(state, loss_and_gradients(state.params, batch, constants))

    return train_step


def make_update(
    settings: AdamW, *, global_norm: Callable[[Tree], GradientNorm], skip_non_finite: bool
) -> Callable[[TrainState, LossAndGradients], tuple[TrainState, StepMetrics]]:
    """What a step does with its gradients."""

    def update_state(state: TrainState, result: LossAndGradients) -> tuple[TrainState, StepMetrics]:
        loss, num_tokens, gradients = result
        update = apply_gradients(
            settings,
            state.params,
            state.moments,
            gradients=gradients,
            global_norm=global_norm,
            loss=loss,
            skip_non_finite=skip_non_finite,
        )
        metrics = StepMetrics(
            loss,
            update.grad_norm,
            update.learning_rate,
            num_tokens,
            update.is_finite,
            update.moments.count,
            update.squares,
        )
        return TrainState(update.params, update.moments), metrics

    return update_state


def compile_step(
    train_step: Callable[[TrainState, Batch, Tree], tuple[TrainState, Any]],
    state: TrainState,
    batch: Batch,
    *,
    constants: Tree,
    mesh: Mesh,
    sharding: Sharding,
    options: Mapping[str, Any] | None = None,
) -> jax.stages.Compiled:
    """The compiled step; it takes over the memory of the state that it is given.

    options: XLA's, beside the usual ones (``devices.compiler_options``).
    """
    everywhere = NamedSharding(mesh, PartitionSpec())
    shardings = state_shardings(state, mesh, sharding)
    jitted = jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, everywhere))
    usual = compiler_options(mesh.devices.flat[0].platform)
    return jitted.lower(state, batch, constants).compile(usual | dict(options or {}))


def to_microbatches(
    tokens: np.ndarray,
    labels: np.ndarray,
    *,
    num_microbatches: int,
    mesh: Mesh,
    extras: Mapping[str, np.ndarray] | None = None,
) -> Batch:
    """``[global batch, sequence]`` on the host as ``[microbatches, batch, sequence]`` on the devices.

    Every process gives the whole batch; see global_arrays.py.

    extras: more such arrays, for the layers.
    """

    def cut(array: np.ndarray) -> Array:
        return to_devices(array.reshape(num_microbatches, -1, array.shape[-1]), _batch_sharding(mesh))

    return Batch(cut(tokens), cut(labels), {name: cut(array) for name, array in (extras or {}).items()})


def batch_shapes(
    global_batch: int, sequence: int, *, num_microbatches: int, mesh: Mesh, extras: Collection[str] = ()
) -> Batch:
    """The shapes and shardings of what ``to_microbatches`` gives, with extras of these names."""
    shape = (num_microbatches, global_batch // num_microbatches, sequence)
    tokens = jax.ShapeDtypeStruct(shape, np.int32, sharding=_batch_sharding(mesh))
    return Batch._make((tokens, tokens, dict.fromkeys(extras, tokens)))


def _batch_sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(None, "dp"))
