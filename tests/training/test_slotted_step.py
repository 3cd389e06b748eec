"""A step whose slots stay from step to step computes what one computes that allocates them itself."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpipe.lowering import lower
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import Batch, Layout, Program, Settings, Tree, make_loss_and_gradients
from jaxpipe.pipeline.buffers import Slots
from jaxpipe.pipeline.sharding import Sharding
from jaxpipe.schedules import build
from jaxpipe.training.grad_norm import make_global_norm
from jaxpipe.training.slotted_step import SlottedStep, compile_slotted_step
from jaxpipe.training.state import TrainState, init_state
from jaxpipe.training.step import compile_step, make_train_step, to_microbatches
from tests.training.test_optimizer import SETTINGS

CONFIG = LlamaConfig(
    vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=5, num_attention_heads=2
)
SEQUENCE, NUM_MICROBATCHES = 8, 4
ORDER_OF_XLA = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_DEFAULT"}


@dataclass(frozen=True)
class Task:
    program: Program
    batches: list[Batch]
    constants: Tree

    def new_state(self) -> TrainState:
        program = self.program
        return init_state(lambda: init_llama(CONFIG, 0), SETTINGS, layout=program.layout, mesh=program.mesh)


@pytest.fixture(
    scope="module",
    params=[("zb_v", 2, 0, (2, 1, 1, 1)), ("1f1b", 1, 0, (3, 2)), ("dualpipe", 2, 1, (3, 2))],
    ids=lambda param: f"{param[0]}-dp{param[1]}-zero{param[2]}",
)
def task(request: pytest.FixtureRequest) -> Task:
    """Remat none, so that every kind of slot is there; NaN in all of them.

    Gradients take the accumulators' place, but with ZeRO 1 or two pipes, where they are of other shapes.
    """
    name, dp, zero, layers = request.param
    mesh = jax.make_mesh(
        (dp, 2), ("dp", "pp"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[: 2 * dp]
    )
    schedule = build(name, num_ranks=2, num_microbatches=NUM_MICROBATCHES)
    contract = llama_contract(CONFIG, "einsum")
    sharding = Sharding(zero=zero, splits=contract.splits)
    layout = Layout(schedule.placement, layers, CONFIG.vocab_size, sharding)
    settings = Settings(remat="none", fill=float("nan"))
    program = Program(contract, lower(schedule), layout, mesh, settings)
    text = np.random.default_rng(0).integers(0, 50, (3, dp * NUM_MICROBATCHES, SEQUENCE + 1), np.int32)
    batches = [
        to_microbatches(step[:, :-1], step[:, 1:], num_microbatches=NUM_MICROBATCHES, mesh=mesh)
        for step in text
    ]
    constants = jax.device_put(llama_constants(CONFIG, SEQUENCE), NamedSharding(mesh, PartitionSpec()))
    return Task(program, batches, constants)


@pytest.fixture(scope="module")
def slotted(task: Task) -> SlottedStep:
    return compile_slotted_step(
        task.program, SETTINGS, task.new_state(), task.batches[0], constants=task.constants
    )


def test_steps_have_the_bits_of_steps_that_allocate(task: Task, slotted: SlottedStep) -> None:
    """Also those that find in the slots what the step before has left there, and after a release."""
    program = task.program
    plain = compile_step(
        make_train_step(
            make_loss_and_gradients(program),
            SETTINGS,
            global_norm=make_global_norm(program.layout, program.mesh),
        ),
        task.new_state(),
        task.batches[0],
        constants=task.constants,
        mesh=program.mesh,
        sharding=program.layout.sharding,
        options=ORDER_OF_XLA,
    )
    ours, theirs = task.new_state(), task.new_state()
    for number, batch in enumerate(task.batches):
        ours, metrics = slotted(ours, batch, task.constants)
        theirs, expected = plain(theirs, batch, task.constants)
        assert metrics.loss == expected.loss
        assert jnp.isfinite(metrics.loss)
        for ours_leaf, theirs_leaf in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert np.asarray(ours_leaf).tobytes() == np.asarray(theirs_leaf).tobytes()
        if number == 1:
            slotted.release()


def test_slots_are_overwritten_where_they_lie(slotted: SlottedStep, task: Task) -> None:
    """As the state is: what the program gives back lies where its arguments did."""
    state = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(task.new_state()))
    assert slotted.slot_bytes > 0
    assert slotted.compiled.memory_analysis().alias_size_in_bytes >= slotted.slot_bytes + state


def test_less_is_alive_at_once_than_in_the_order_that_xla_chooses_by_itself(
    slotted: SlottedStep, task: Task
) -> None:
    state = task.new_state()
    by_itself = compile_slotted_step(
        task.program, SETTINGS, state, task.batches[0], constants=task.constants, options=ORDER_OF_XLA
    )
    temporaries = [step.compiled.memory_analysis().temp_size_in_bytes for step in (slotted, by_itself)]
    assert temporaries[0] < temporaries[1]


def test_a_step_that_fails_leaves_no_slots_that_are_gone() -> None:
    """They were donated, whatever came of it: the next call makes new ones."""
    made: list[Slots] = []

    def make() -> Slots:
        made.append({"inbox": jnp.zeros(3)})
        return made[-1]

    def compiled(state: TrainState, batch: Batch, constants: Tree, slots: Slots) -> tuple:
        slots["inbox"].delete()
        if len(made) == 1:
            raise RuntimeError("the device is gone")
        return state, None, {"inbox": jnp.ones(3)}

    step = SlottedStep(compiled, make, 12)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="is gone"):
        step(None, None, None)  # type: ignore[arg-type]
    step(None, None, None)  # type: ignore[arg-type]
    step(None, None, None)  # type: ignore[arg-type]
    assert len(made) == 2
