"""A step with marks: the same bits, times that follow each other, and of layers that sleep the right ones."""

import time
from typing import NamedTuple

import jax
import mlp
import numpy as np
import pytest
from programs import QUICK, assert_same_bits, make_program

from jaxpipe.lowering import lower
from jaxpipe.pipeline import (
    Program,
    Settings,
    StageContract,
    make_empty_slots,
    make_loss_and_gradients,
    make_loss_and_gradients_in_slots,
    to_stage_layout,
)
from jaxpipe.pipeline.contract import Tree
from jaxpipe.pipeline.tick_clock import NANOSECONDS, to_nanoseconds
from jaxpipe.planning.explanation import explain, shares, spread_of_actions
from jaxpipe.schedules import Kind, build
from jaxpipe.training.tick_tracing import trace_of

NUM_MICROBATCHES = 4


class Timed(NamedTuple):
    """``stamps`` are in nanoseconds ``[ticks, ranks, marks]``; of the second run, when all is warm."""

    plain: str
    expected: Tree
    result: Tree
    stamps: np.ndarray
    began: int
    ended: int


def run_both(program: Program, params: Tree, batch: Tree) -> Timed:
    arguments = to_stage_layout(params, program.layout), batch, mlp.make_constants()
    plain = jax.jit(make_loss_and_gradients(program)).lower(*arguments).compile(QUICK)
    slots = make_empty_slots(program, *arguments)()
    timed = (
        jax.jit(make_loss_and_gradients_in_slots(program, timed=True)).lower(*arguments, slots).compile(QUICK)
    )
    jax.block_until_ready(timed(*arguments, slots))
    began = time.monotonic_ns()
    (result, stamps), _ = jax.block_until_ready(timed(*arguments, slots))
    ended = time.monotonic_ns()
    expected = plain(*arguments)
    return Timed(plain.as_text(), expected, result, to_nanoseconds(np.asarray(stamps)), began, ended)


@pytest.mark.parametrize(
    ("name", "p", "fuse", "transfer_ticks", "dp"),
    [("1f1b", 4, True, 1, 2), ("zb_h1", 2, False, 2, 1), ("chimera", 2, False, 1, 1)],
)
def test_marks_change_no_bit_and_follow_each_other(
    name: str, p: int, fuse: bool, transfer_ticks: int, dp: int
) -> None:
    schedule = build(name, num_ranks=p, num_microbatches=NUM_MICROBATCHES)
    table = lower(schedule, fuse_backward=fuse, transfer_ticks=transfer_ticks)
    params, batch = mlp.make_params(4), mlp.make_batch(NUM_MICROBATCHES)
    timed = run_both(make_program(mlp.CONTRACT, table, params, dp=dp), params, batch)
    assert_same_bits(timed.result, timed.expected)
    assert "callback" not in timed.plain, "a step that nobody times must not ask for the time"
    stamps = timed.stamps
    assert stamps.shape == (table.num_ticks, p, 4)
    assert timed.began < stamps.min()
    assert stamps.max() < timed.ended
    own = stamps.transpose(1, 0, 2).reshape(p, -1)
    assert (np.diff(own) >= 0).all()
    # nobody leaves the ends before all have come, nor an exchange before what it keeps has been sent
    uses_ends = (np.stack([table.ends.embed, table.ends.head, table.ends.unembed]) >= 0).any(axis=(0, 2))
    assert (stamps[uses_ends, :, 1].min(axis=1) > stamps[uses_ends, :, 0].max(axis=1)).all()
    for hop, column in ((-1, table.ranks.from_below), (1, table.ranks.from_above)):
        for tick, rank in zip(*np.nonzero(column != table.num_inbox_slots), strict=True):
            if transfer_ticks == 1:
                assert stamps[tick, rank, 3] > stamps[tick, (rank + hop) % p, 2]


def test_layers_that_sleep_are_explained_with_the_times_that_they_sleep() -> None:
    """0.15: a mark and a callback take a millisecond or two of 20 where other tests are at work beside it."""
    seconds = {Kind.F: 0.02, Kind.BW: 0.04}
    schedule = build("1f1b", num_ranks=2, num_microbatches=NUM_MICROBATCHES)
    table = lower(schedule, fuse_backward=True)
    params, batch = mlp.make_params(2), mlp.make_batch(NUM_MICROBATCHES)
    contract = StageContract(sleeping(seconds[Kind.F], seconds[Kind.BW]), mlp.final)
    program = make_program(contract, table, params, settings=Settings(remat="none"))
    timed = run_both(program, params, batch)
    trace = trace_of(
        table,
        step=4,
        stamps=timed.stamps,
        began=timed.began,
        ended=timed.ended,
        processes=(0, 0),
        run={"layers_per_stage": [1, 1]},
    )
    assert trace.actions[0] == (schedule.orders[0][0], None)
    assert [[action for row in trace.actions if (action := row[rank])] for rank in (0, 1)] == [
        list(order) for order in schedule.orders
    ]
    for kind, spread in spread_of_actions(trace).items():
        assert seconds[kind] <= spread.least
        assert spread.median == pytest.approx(seconds[kind], rel=0.15)
    explanation = explain(trace)
    assert explanation.measured.makespan == pytest.approx(explanation.predicted.makespan, rel=0.15)
    one, other = (shares(trace, each) for each in (explanation.predicted, explanation.measured))
    for what in one:
        assert other[what] == pytest.approx(one[what], abs=0.15), what
    assert explanation.measured.makespan <= (timed.ended - timed.began) / NANOSECONDS


def sleeping(forward_seconds: float, backward_seconds: float):
    """``mlp.layer``, which takes that long forward and backward."""

    def after(seconds: float, x: jax.Array) -> jax.Array:
        def on_host(x: np.ndarray) -> np.ndarray:
            time.sleep(seconds)
            return x

        slept = jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return jax.lax.pcast(slept, "pp", to="varying")

    @jax.custom_vjp
    def wait(x: jax.Array) -> jax.Array:
        return after(forward_seconds, x)

    wait.defvjp(lambda x: (wait(x), None), lambda _, dy: (after(backward_seconds, dy),))
    return lambda params, x, constants, extras: mlp.layer(params, wait(x), constants, extras)
