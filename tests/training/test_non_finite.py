"""A step that is not finite: skipped to the bit, or the end of the run; and what is said of it."""

import io
import json
import math
from functools import cache
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxpipe.lowering import lower
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import (
    Batch,
    LossAndGradients,
    Program,
    Settings,
    Tree,
    make_loss_and_gradients,
    to_stage_layout,
)
from jaxpipe.pipeline.sharding import stage_shardings
from jaxpipe.schedules import build, looped, mirrored
from jaxpipe.training.curves import Curves
from jaxpipe.training.grad_norm import make_global_norm, square_names
from jaxpipe.training.non_finite import non_finite_leaves
from jaxpipe.training.optimizer import learning_rate_at
from jaxpipe.training.progress import ProgressLine, make_console
from jaxpipe.training.state import TrainState, init_state
from jaxpipe.training.step import StepMetrics, compile_step, make_train_step, to_microbatches
from jaxpipe.training.step_log import DivergedError, StepLog
from jaxpipe.training.utilization import Utilization
from tests.training.test_grad_norm import names_of, spoiled
from tests.training.test_optimizer import SETTINGS
from tests.training.test_state import Where

QUICK = {"xla_backend_optimization_level": 0}

SEQUENCE, NUM_MICROBATCHES = 8, 4


class Steps(NamedTuple):
    """A compiled step that skips, its first state, and what to feed it; ``poison``: constants with a NaN."""

    compiled: jax.stages.Compiled
    state: TrainState
    batches: list[Batch]
    constants: Tree
    poison: Tree


def make_steps(schedule: str, where: Where) -> Steps:
    order = build(schedule, num_ranks=2, num_microbatches=NUM_MICROBATCHES)
    layout, mesh = where.layout, where.mesh
    assert order.placement == layout.placement
    program = Program(llama_contract(where.config, "einsum"), lower(order), layout, mesh, Settings())
    state = init_state(where.init, SETTINGS, layout=layout, mesh=mesh)
    text = np.random.default_rng(0).integers(
        0, where.config.vocab_size, (3, 2 * NUM_MICROBATCHES, SEQUENCE + 1), np.int32
    )
    batches = [
        to_microbatches(step[:, :-1], step[:, 1:], num_microbatches=NUM_MICROBATCHES, mesh=mesh)
        for step in text
    ]
    constants = jax.device_get(llama_constants(where.config, SEQUENCE))
    everywhere = NamedSharding(mesh, PartitionSpec())
    poison = jax.tree.map(np.copy, constants)
    jax.tree.leaves(poison)[0].reshape(-1)[3] = np.nan
    constants, poison = jax.device_put((constants, poison), everywhere)
    train_step = make_train_step(
        make_loss_and_gradients(program),
        SETTINGS,
        global_norm=make_global_norm(layout, mesh),
        skip_non_finite=True,
    )
    compiled = compile_step(
        train_step,
        state,
        batches[0],
        constants=constants,
        mesh=mesh,
        sharding=layout.sharding,
        options=QUICK,
    )
    return Steps(compiled, state, batches, constants, poison)


def copy_of(tree: Tree) -> Tree:
    """On the host; what is on the devices may be donated."""
    return jax.tree.map(np.array, jax.device_get(tree))


def assert_same_bits(found: Tree, expected: Tree) -> None:
    chex.assert_trees_all_equal_structs(found, expected)
    for leaf, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.asarray(leaf).tobytes() == np.asarray(wanted).tobytes()


@pytest.mark.parametrize(
    ("schedule", "where"),
    [
        ("1f1b", Where(looped(2), dp=2)),
        ("interleaved", Where(looped(2, 2), dp=2, tp=2, zero=3)),
        ("dualpipe", Where(mirrored(2), dp=2)),
    ],
    ids=["one pipe", "chunks on three axes", "two pipes"],
)
def test_a_step_that_is_not_finite_leaves_no_bit_behind(schedule: str, where: Where) -> None:
    compiled, start, batches, constants, poison = make_steps(schedule, where)
    first, last = batches[0], batches[2]
    copies = jax.tree.map(jnp.copy, start)
    state, _ = compiled(copies, first, constants)
    state, expected = compiled(state, last, constants)
    wanted = copy_of(state)

    state, before = compiled(start, first, constants)
    kept = copy_of(state)
    state, skipped = compiled(state, batches[1], poison)
    assert_same_bits(state, kept)
    state, after = compiled(state, last, constants)
    assert_same_bits(state, wanted)
    assert_same_bits(after, expected)
    assert float(after.learning_rate) == float(learning_rate_at(SETTINGS, 2))
    found = [(bool(step.is_finite), int(step.num_updates)) for step in (before, skipped, after)]
    assert found == [(True, 1), (False, 1), (True, 2)]
    assert math.isnan(float(skipped.loss))
    names = square_names(start.params, where.layout)
    assert non_finite_leaves(names, np.asarray(skipped.squares))[0] == "head"


GRADIENTS = Where(looped(2, 2), (1, 2, 1, 1), dp=2, zero=1)


@cache
def compiled_update(*, skips: bool, loss: float = 1.0) -> tuple[jax.stages.Compiled, TrainState]:
    """A step whose gradients are given in place of the constants."""
    state, mesh, layout = GRADIENTS.new_state(), GRADIENTS.mesh, GRADIENTS.layout
    train_step = make_train_step(
        lambda _, batch, gradients: LossAndGradients(jnp.float32(loss), batch.tokens.sum(), gradients),
        SETTINGS,
        global_norm=make_global_norm(layout, mesh),
        skip_non_finite=skips,
    )
    batch = Batch(jnp.ones(3, jnp.int32), jnp.ones(3, jnp.int32), {})
    compiled = compile_step(
        train_step, state, batch, constants=state.params, mesh=mesh, sharding=layout.sharding
    )
    return compiled, state


def update(gradients: Tree, *, skips: bool, loss: float = 1.0) -> tuple[TrainState, StepMetrics]:
    """The first step with these canonical gradients."""
    compiled, state = compiled_update(skips=skips, loss=loss)
    staged = to_stage_layout(gradients, GRADIENTS.layout)
    staged = jax.device_put(staged, stage_shardings(staged, GRADIENTS.mesh, GRADIENTS.layout.sharding))
    batch = Batch(jnp.ones(3, jnp.int32), jnp.ones(3, jnp.int32), {})
    return compiled(jax.tree.map(jnp.copy, state), batch, staged)


def scaled(factor: float) -> Tree:
    return jax.tree.map(lambda leaf: jnp.sign(leaf) * factor, init_llama(GRADIENTS.config, 1))


NOT_FINITE = ("one NaN", "one infinity", "a square overflows", "only their sum overflows", "the loss alone")


@cache
def not_finite(name: str) -> tuple[Tree, float]:
    """Gradients and a loss."""
    if name == "one NaN":
        return spoiled(
            scaled(0.1), "layers.2.small.post_attention_layernorm.scale", at=0.5, value=np.nan
        ), 1.0
    if name == "one infinity":
        return spoiled(scaled(0.1), "embedding", at=1, value=-np.inf), 1.0
    factors = {"a square overflows": 3e19, "only their sum overflows": 1.5e17, "the loss alone": 0.1}
    return scaled(factors[name]), math.inf if name == "the loss alone" else 1.0


@pytest.mark.parametrize("name", NOT_FINITE)
def test_whatever_is_not_finite_is_skipped_to_the_bit(name: str) -> None:
    gradients, loss = not_finite(name)
    start = copy_of(compiled_update(skips=True, loss=loss)[1])
    state, metrics = update(gradients, skips=True, loss=loss)
    assert_same_bits(state, start)
    assert not metrics.is_finite
    assert int(metrics.num_updates) == 0


def test_a_finite_step_is_the_same_whether_others_would_be_skipped() -> None:
    found, expected = (update(scaled(1e3), skips=skips) for skips in (True, False))
    assert_same_bits(found, expected)
    assert int(found[0].moments.count) == 1
    with pytest.raises(AssertionError):
        assert_same_bits(found[0], compiled_update(skips=True)[1])


def test_skipping_needs_no_memory_beside_the_state() -> None:
    """The state is donated, and beyond what a step takes that skips nothing there is not even a leaf."""
    skips, stops = (compiled_update(skips=skips)[0].memory_analysis() for skips in (True, False))
    state = copy_of(compiled_update(skips=True)[1])
    assert skips.alias_size_in_bytes == stops.alias_size_in_bytes
    largest_share = max(leaf.nbytes for leaf in jax.tree.leaves(state)) / 4  # on each of four devices
    assert skips.temp_size_in_bytes < stops.temp_size_in_bytes + largest_share


def make_log(
    *, skips: bool, max_skipped_steps: int = 10, log_every: int = 1, num_steps: int = 100
) -> tuple[StepLog, io.StringIO]:
    file = io.StringIO()
    file.name = "metrics.jsonl"
    names = square_names(GRADIENTS.init(), GRADIENTS.layout)
    line = ProgressLine(make_console(), num_steps, None)
    log = StepLog(
        Curves(file),
        line,
        log_every,
        names,
        skips=skips,
        max_skipped_steps=max_skipped_steps,
        utilization=Utilization(flops_per_step=10**9, peak=None),
    )
    return log, file


SAID = {
    "one NaN": "loss 1.0 and gradient norm nan; .* not finite in 1 of 48 gradients, .*: "
    r"layers\.2\.small\.post_attention_layernorm\.scale\. Its state",
    "one infinity": r"loss 1.0 and gradient norm inf; .* in 1 of 48 gradients, .*: embedding\. Its state",
    "a square overflows": "in 48 of 48 gradients, in the order of the backward pass: "
    r"head, final.scale, layers.4.kernels.\S+ and 45 more\. Its",
    "only their sum overflows": "each of 48 gradients is finite, that of all together is not. Its",
    "the loss alone": r"loss inf and gradient norm \S+; the gradients are finite",
}


@pytest.mark.parametrize("name", NOT_FINITE)
def test_a_run_that_stops_names_step_values_and_leaves(name: str) -> None:
    gradients, loss = not_finite(name)
    _, metrics = update(gradients, skips=False, loss=loss)
    log, file = make_log(skips=False, log_every=50)
    log.add(7, metrics)
    with pytest.raises(DivergedError, match=f"step 7: .*{SAID[name]}") as raised:
        log.add(8, metrics)
    assert "train.non_finite=skip" in str(raised.value)
    assert file.getvalue() == ""


def test_every_leaf_is_named_when_it_alone_is_not_finite() -> None:
    for name in names_of(GRADIENTS):
        _, metrics = update(spoiled(scaled(0.1), name, at=0.5, value=np.nan), skips=False)
        log, _ = make_log(skips=False)
        log.add(1, metrics)
        with pytest.raises(DivergedError, match=f"in 1 of 48 gradients.*: {name}. Its state"):
            log.flush()


def test_a_skipped_step_is_told_and_logged_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = update(scaled(0.1), skips=True)[1], update(not_finite("one NaN")[0], skips=True)[1]
    log, file = make_log(skips=True, log_every=4)
    log.start_clock()
    counts = (1, 1, 2, 3, 3, 4)  # steps 2 and 5 are skipped
    for step, count in enumerate(counts, start=1):
        metrics = bad if step in (2, 5) else good
        log.add(step, metrics._replace(num_updates=jnp.int32(count)))
    log.flush()
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [(line["step"], line["grad_norm"] == "NaN", line["skipped"]) for line in lines] == [
        (2, True, 1),
        (4, False, 1),
        (5, True, 2),
    ]
    printed = capsys.readouterr().out
    assert "step 2: skipped" in printed
    assert (
        "layers.2.small.post_attention_layernorm.scale. Parameters and optimizer are as they were; 1 skipped"
        in printed
    )
    assert "2 skipped so far" in printed


@pytest.mark.parametrize("max_skipped_steps", [1, 3])
def test_too_many_skipped_in_a_row_end_the_run(max_skipped_steps: int) -> None:
    good, bad = update(scaled(0.1), skips=True)[1], update(not_finite("one NaN")[0], skips=True)[1]
    log, file = make_log(skips=True, max_skipped_steps=max_skipped_steps)
    log.start_clock()
    before = [bad] * (max_skipped_steps - 1) + [good]  # a good one between them starts the row anew
    for step, metrics in enumerate(before + [bad] * max_skipped_steps, start=1):
        log.add(step, metrics)
    with pytest.raises(
        DivergedError, match=rf"train.max_skipped_steps={max_skipped_steps} ends .* in 1 of 48 "
    ):
        log.flush()
    assert len(file.getvalue().splitlines()) == 2 * max_skipped_steps
