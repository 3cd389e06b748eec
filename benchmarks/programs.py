"""The two programs that are held against each other: the executor's training step, and the un-pipelined one.

Both are whole steps, with the optimizer and donated state, on the same microbatches of random tokens.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Int32

from jaxpipe.pipeline import Batch, LossAndGradients, Program, Tree
from jaxpipe.training.optimizer import AdamW, init_moments
from jaxpipe.training.slotted_step import compile_slotted_step
from jaxpipe.training.state import TrainState, init_state
from jaxpipe.training.step import StepMetrics, make_train_step, to_microbatches


class Task(NamedTuple):
    """What a step works on.

    init_params, make_constants: compute when called.
    text: random token ids, a microbatch's sequences one token longer than what the model reads.
    """

    init_params: Callable[[], Tree]
    make_constants: Callable[[], Tree]
    optimizer: AdamW
    text: Int32[np.ndarray, "microbatches batch sequence+1"]


class CompiledStep(NamedTuple):
    """A step that is ready to run, and what it took to make it.

    run: does one step and returns when it is done.
    compile_seconds: tracing, lowering and compiling.
    temp_bytes: what one device holds while a step runs, beside state and batch: slots and temporaries.
    """

    run: Callable[[], StepMetrics]
    compile_seconds: float
    temp_bytes: int


def random_text(num_microbatches: int, batch: int, *, sequence_length: int, vocab_size: int) -> np.ndarray:
    """The ``text`` of a task, the same each time."""
    shape = (num_microbatches, batch, sequence_length + 1)
    return np.random.default_rng(0).integers(0, vocab_size, shape, np.int32)


def pipelined_step(program: Program, task: Task) -> CompiledStep:
    """The step as a run does it."""
    mesh, text = program.mesh, task.text.reshape(-1, task.text.shape[-1])
    state = init_state(task.init_params, task.optimizer, layout=program.layout, mesh=mesh)
    batch = to_microbatches(text[:, :-1], text[:, 1:], num_microbatches=len(task.text), mesh=mesh)
    constants = jax.device_put(task.make_constants(), NamedSharding(mesh, PartitionSpec()))
    start = time.perf_counter()
    step = compile_slotted_step(program, task.optimizer, state, batch, constants=constants)
    seconds = time.perf_counter() - start
    temp_bytes = step.slot_bytes + _temp_bytes(step.compiled)
    return _ready(step, (state, batch, constants), compile_seconds=seconds, temp_bytes=temp_bytes)


def unpipelined_step(
    loss_and_gradients: Callable[[Tree, Batch, Tree], LossAndGradients], task: Task
) -> CompiledStep:
    """The step of a plain function of canonical parameters, on one device."""
    params = jax.jit(task.init_params)()
    state = TrainState(params, init_moments(task.optimizer, params))
    batch = Batch(jnp.asarray(task.text[..., :-1]), jnp.asarray(task.text[..., 1:]), {})
    constants = task.make_constants()
    train_step = make_train_step(loss_and_gradients, task.optimizer)
    start = time.perf_counter()
    compiled = jax.jit(train_step, donate_argnums=0).lower(state, batch, constants).compile()
    seconds = time.perf_counter() - start
    return _ready(
        compiled, (state, batch, constants), compile_seconds=seconds, temp_bytes=_temp_bytes(compiled)
    )


def _ready(
    step: Callable[[TrainState, Batch, Tree], tuple[TrainState, StepMetrics]],
    arguments: tuple[TrainState, Batch, Tree],
    *,
    compile_seconds: float,
    temp_bytes: int,
) -> CompiledStep:
    state, batch, constants = arguments

    def run() -> StepMetrics:
        nonlocal state
        state, metrics = jax.block_until_ready(step(state, batch, constants))
        return metrics

    return CompiledStep(run, compile_seconds, temp_bytes)


def _temp_bytes(compiled: jax.stages.Compiled) -> int:
    memory = compiled.memory_analysis()
    assert memory is not None, "this backend does not tell what a program allocates"
    return memory.temp_size_in_bytes
