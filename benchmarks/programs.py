"""The two programs that are held against each other: the executor's training step, and the un-pipelined one.

Both are whole steps, with the optimizer and donated state, on the same microbatches of random tokens. What is
only compiled and never run takes shapes, for which nothing is allocated.
"""

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Int32

from jaxpipe.config import Config
from jaxpipe.pipeline import (
    Batch,
    LossAndGradients,
    Program,
    Tree,
    to_stage_layout,
)
from jaxpipe.training.devices import compiler_options
from jaxpipe.training.optimizer import AdamW, init_moments
from jaxpipe.training.plan import Plan
from jaxpipe.training.slotted_step import compile_slotted_step
from jaxpipe.training.state import TrainState, init_state, state_shardings
from jaxpipe.training.step import (
    StepMetrics,
    batch_shapes,
    make_train_step,
    to_microbatches,
)


class Task(NamedTuple):
    """What a step works on.

    init_params, make_constants: compute when called.
    text: random token ids, a microbatch's sequences one token longer than what the model reads.
    """

    init_params: Callable[[], Tree]
    make_constants: Callable[[], Tree]
    optimizer: AdamW
    text: Int32[np.ndarray, "microbatches batch sequence+1"]


class Arguments(NamedTuple):
    """What a step is called with: arrays, or their shapes and shardings."""

    state: TrainState
    batch: Batch
    constants: Tree


COMPILATIONS = 2
"""How often a step is compiled to time that: the fastest counts, since a single one is off by up to 20 %."""


class Compiled(NamedTuple):
    """A compiled step; ``seconds`` are those of tracing, lowering and compiling.

    step: ``(state, batch, constants) -> (state, metrics)``. slot_bytes: of what it keeps between steps.
    """

    program: jax.stages.Compiled
    seconds: float
    step: Callable[[TrainState, Batch, Tree], tuple[TrainState, StepMetrics]]
    slot_bytes: int = 0

    @property
    def memory(self) -> Any:
        """What the compiler says that one device holds."""
        memory = self.program.memory_analysis()
        assert memory is not None, "this backend does not tell what a program allocates"
        return memory

    @property
    def temp_bytes(self) -> int:
        """What one device holds while a step runs, beside state and batch: slots and temporaries."""
        return self.slot_bytes + self.memory.temp_size_in_bytes

    @property
    def total_bytes(self) -> int:
        """Arguments, results that overwrite none of them, and temporaries of one device."""
        memory = self.memory
        results = memory.output_size_in_bytes - memory.alias_size_in_bytes
        return memory.argument_size_in_bytes + results + memory.temp_size_in_bytes


class ReadyStep(NamedTuple):
    """A step that can run, which it does once a call, and returns when it is done."""

    run: Callable[[], StepMetrics]
    compiled: Compiled


def fastest_in_turn(*compilers: Callable[[], Compiled]) -> list[Compiled]:
    """Each step with the seconds of its fastest compilation; they take turns, so that quotients hold."""
    rounds: list[list[Compiled]] = []
    for _ in range(COMPILATIONS):
        rounds.append([])
        for compile_step in compilers:
            gc.collect()  # what is left of other programs would be found in the middle of this one
            rounds[-1].append(compile_step())
    tries = zip(*rounds, strict=True)
    return [tried[-1]._replace(seconds=min(each.seconds for each in tried)) for tried in tries]


LossAndGradientsOf = Callable[[Tree, Batch, Tree], LossAndGradients]


def random_text(num_microbatches: int, batch: int, *, sequence_length: int, vocab_size: int) -> np.ndarray:
    """The ``text`` of a task, the same each time."""
    shape = (num_microbatches, batch, sequence_length + 1)
    return np.random.default_rng(0).integers(0, vocab_size, shape, np.int32)


def task_of(plan: Plan, config: Config) -> Task:
    """The work of a run's step, on random text."""
    num_microbatches = config.pipeline.num_microbatches
    text = random_text(
        num_microbatches,
        config.train.global_batch_size // num_microbatches,
        sequence_length=config.data.sequence_length,
        vocab_size=config.model.vocab_size,
    )
    return Task(plan.init_params, plan.make_constants, plan.optimizer, text)


def pipelined_step(program: Program, task: Task) -> ReadyStep:
    """The step as a run does it."""
    compiled = compile_pipelined(program, task.optimizer, pipelined_shapes(program, task))
    return ready_pipelined(program, task, compiled)


def compile_both(
    program: Program, loss_and_gradients: LossAndGradientsOf, task: Task
) -> tuple[Compiled, Compiled]:
    """The pipelined step and the plain one, with their times to compile; nothing is allocated yet."""
    ours, plain = fastest_in_turn(
        lambda: compile_pipelined(program, task.optimizer, pipelined_shapes(program, task)),
        lambda: compile_unpipelined(loss_and_gradients, task),
    )
    return ours, plain


def ready_pipelined(program: Program, task: Task, compiled: Compiled) -> ReadyStep:
    """With what it works on."""
    mesh, text = program.mesh, task.text.reshape(-1, task.text.shape[-1])
    arguments = Arguments(
        init_state(task.init_params, task.optimizer, layout=program.layout, mesh=mesh),
        to_microbatches(text[:, :-1], text[:, 1:], num_microbatches=len(task.text), mesh=mesh),
        jax.device_put(task.make_constants(), NamedSharding(mesh, PartitionSpec())),
    )
    return _ready(compiled, arguments)


def pipelined_shapes(program: Program, task: Task) -> Arguments:
    """The shapes and shardings of what ``pipelined_step`` works on."""

    def init() -> TrainState:
        params = to_stage_layout(task.init_params(), program.layout)
        return TrainState(params, init_moments(task.optimizer, params))

    shapes = jax.eval_shape(init)
    state = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        state_shardings(shapes, program.mesh, program.layout.sharding),
    )
    num_microbatches, batch, length = task.text.shape
    return Arguments(
        state,
        batch_shapes(
            num_microbatches * batch, length - 1, num_microbatches=num_microbatches, mesh=program.mesh
        ),
        jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=NamedSharding(program.mesh, PartitionSpec())
            ),
            jax.eval_shape(task.make_constants),
        ),
    )


def compile_pipelined(
    program: Program, optimizer: AdamW, arguments: Arguments, *, options: Mapping[str, Any] | None = None
) -> Compiled:
    """The step of a program; ``options`` are XLA's, if not the usual ones."""
    state, batch, constants = arguments
    start = time.perf_counter()
    step = compile_slotted_step(program, optimizer, state, batch, constants=constants, options=options)
    return Compiled(step.compiled, time.perf_counter() - start, step, step.slot_bytes)


def unpipelined_step(loss_and_gradients: LossAndGradientsOf, task: Task) -> ReadyStep:
    """The step of a plain function of canonical parameters, on one device."""
    return ready_unpipelined(task, compile_unpipelined(loss_and_gradients, task))


def ready_unpipelined(task: Task, compiled: Compiled) -> ReadyStep:
    """With what it works on."""
    return _ready(compiled, jax.jit(lambda: _unpipelined_arguments(task))())


def _unpipelined_arguments(task: Task) -> Arguments:
    params = task.init_params()
    batch = Batch(jnp.asarray(task.text[..., :-1]), jnp.asarray(task.text[..., 1:]), {})
    return Arguments(TrainState(params, init_moments(task.optimizer, params)), batch, task.make_constants())


def compile_unpipelined(loss_and_gradients: LossAndGradientsOf, task: Task) -> Compiled:
    """The step of a plain function of canonical parameters."""
    arguments = jax.eval_shape(lambda: _unpipelined_arguments(task))
    step = jax.jit(make_train_step(loss_and_gradients, task.optimizer), donate_argnums=0)
    start = time.perf_counter()
    compiled = step.lower(*arguments).compile(compiler_options(jax.default_backend()))
    return Compiled(compiled, time.perf_counter() - start, compiled)


def _ready(compiled: Compiled, arguments: Arguments) -> ReadyStep:
    state, batch, constants = arguments

    def run() -> StepMetrics:
        nonlocal state
        state, metrics = jax.block_until_ready(compiled.step(state, batch, constants))
        return metrics

    return ReadyStep(run, compiled)
