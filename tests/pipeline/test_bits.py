"""Equal to the bit, of programs compiled apart: whatever the order, and with one pipe whatever the placement.

Every stage takes its microbatches in ascending order, in each kind of action; the rest is free.
"""

import itertools
from functools import cache
from types import ModuleType
from typing import NamedTuple

import legal_orders
import mlp
import pytest
import tiny_llama
from programs import AS_ALWAYS, assert_leaves_close, assert_same_bits, compile_step, make_program

from jaxpipe.lowering import lower
from jaxpipe.pipeline import LossAndGradients, Settings
from jaxpipe.pipeline.remat import Remat
from jaxpipe.schedules import (
    GENERATORS,
    Placement,
    Schedule,
    build,
    find_faults,
    looped,
    mirrored,
    split_backward,
)

NUM_MICROBATCHES = 8


class Run(NamedTuple):
    """One way to take the same step: a schedule's name, or the placement and seed of a random order."""

    order: str | tuple[Placement, int]
    fuse_backward: bool = False
    transfer_ticks: int = 1
    layers_per_stage: tuple[int, ...] | None = None
    fill: float = float("nan")

    def schedule(self, num_ranks: int) -> Schedule:
        if isinstance(self.order, str):
            return build(self.order, num_ranks=num_ranks, num_microbatches=NUM_MICROBATCHES)
        placement, seed = self.order
        return legal_orders.random_order(placement, NUM_MICROBATCHES, seed, ascending=True)


@cache
def mlp_step(
    run: Run, num_ranks: int, num_layers: int, tied: bool, remat: Remat = "full"
) -> LossAndGradients:
    table = lower(run.schedule(num_ranks), transfer_ticks=run.transfer_ticks, fuse_backward=run.fuse_backward)
    params, batch = mlp.make_params(num_layers, tied=tied), mlp.make_batch(NUM_MICROBATCHES)
    settings = Settings(remat=remat, fill=run.fill)
    program = make_program(
        mlp.CONTRACT, table, params, layers_per_stage=run.layers_per_stage, settings=settings
    )
    return compile_step(program, params, batch, mlp.make_constants())(params, batch)


@pytest.mark.parametrize(
    ("remat", "layers", "tied", "others"),
    [
        ("full", (2, 2, 2, 2), True, [("1f1b", True, 2), ("1f1b", False, 1), ("zb_h1", False, 1)]),
        ("selective", (1, 3, 2, 1), False, [("1f1b", False, 2), ("zb_h1", True, 1)]),
        ("none", (1, 1, 1, 1), True, [("1f1b", True, 1), ("zb_h1", False, 2)]),
    ],
    ids=["full", "selective", "none"],
)
def test_all_schedules_give_the_same_bits(
    remat: Remat, layers: tuple[int, ...], tied: bool, others: list[tuple[str, bool, int]]
) -> None:
    """Schedule, ``fuse_backward``, ``transfer_ticks``: all as gpipe, whose buffers start as 0, not as NaN."""
    size = len(layers), sum(layers), tied, remat
    expected = mlp_step(Run("gpipe", True, 1, layers, fill=0.0), *size)
    for other in others:
        assert_same_bits(mlp_step(Run(*other, layers_per_stage=layers), *size), expected)


@pytest.mark.parametrize(
    ("run", "tied"),
    [
        (Run("interleaved"), True),
        (Run((looped(2, 4), 1), transfer_ticks=2), False),
        (Run("dualpipe_v", fuse_backward=True), True),
        (Run("zb_v", layers_per_stage=(1, 4, 1, 2)), False),
        (Run("1f1b", layers_per_stage=(3, 5)), True),
    ],
    ids=["interleaved", "looped-4", "dualpipe_v", "zb_v-uneven", "uneven"],
)
def test_with_one_pipe_the_placement_of_the_layers_changes_no_bit(run: Run, tied: bool) -> None:
    assert_same_bits(mlp_step(run, 2, 8, tied), mlp_step(Run("gpipe"), 2, 8, tied))


@pytest.mark.parametrize(("seed", "named", "tied"), [(6, "chimera", False), (0, "dualpipe", True)])
def test_with_two_pipes_their_interleaving_changes_no_bit(seed: int, named: str, tied: bool) -> None:
    size = 4, 6, tied
    first = mlp_step(Run((mirrored(4), seed)), *size)
    mlp.assert_equals_plain(first, mlp.make_params(6, tied=tied), mlp.make_batch(NUM_MICROBATCHES))
    assert_same_bits(mlp_step(Run(named, True, 2, fill=0.0), *size), first)


@pytest.mark.parametrize("name", GENERATORS)
def test_every_named_schedule_takes_the_microbatches_of_a_stage_in_ascending_order(name: str) -> None:
    """What all of this rests on."""
    for num_ranks, num_microbatches in itertools.product((1, 2, 4, 6), (1, 2, 3, 8, 12)):
        if find_faults(name, num_ranks=num_ranks, num_microbatches=num_microbatches):
            continue
        schedule = split_backward(build(name, num_ranks=num_ranks, num_microbatches=num_microbatches))
        taken: dict[tuple, list[int]] = {}
        for _, action in schedule.actions():
            taken.setdefault((action.kind, action.stage, action.pipe), []).append(action.microbatch)
        for what, microbatches in taken.items():
            assert microbatches == sorted(microbatches), f"{what} of {num_ranks} x {num_microbatches}"


def test_orders_of_two_pipes_let_either_one_reach_an_end_first() -> None:
    """Else the test above would prove little: heads of both pipes come in another order in each table."""
    orders = set()
    for order in ((mirrored(4), 0), (mirrored(4), 6), "chimera"):
        heads = lower(Run(order).schedule(4)).ends.head
        orders.add(tuple(int(heads[tick, pipe]) for tick, pipe in zip(*(heads >= 0).nonzero(), strict=True)))
    assert len(orders) == 3
    assert {order[0] for order in orders} == {0, NUM_MICROBATCHES // 2}


# Remat policies


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "split"])
def test_remat_changes_no_bit_of_the_mlp(fuse: bool) -> None:
    full, selective, none = (remat_step(mlp, remat, fuse) for remat in ("full", "selective", "none"))
    assert_same_bits(selective, full)
    assert_same_bits(none, full)


@pytest.mark.parametrize("remat", ["full", "selective", "none"])
def test_b_and_w_of_llama_have_the_same_bits_on_one_tick_or_two(remat: Remat) -> None:
    """A barrier stands between them: without it XLA fuses part of W into B where both are in one body."""
    assert_same_bits(remat_step(tiny_llama, remat, True), remat_step(tiny_llama, remat, False))


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "split"])
def test_remat_changes_no_more_of_llama_than_xla_does(fuse: bool) -> None:
    """F and the head have the same bits. XLA compiles attention's backward pass in another way where less is
    done again in the same body, and dq, dk, dv and all that follows is off by 3.5e-7 of its largest value at
    most (measured); a term lost would be 1e-3."""
    full, selective, none = (remat_step(tiny_llama, remat, fuse) for remat in ("full", "selective", "none"))
    for other in (selective, none):
        same = "final", "head"
        assert_same_bits(
            (other.loss, {name: other.gradients[name] for name in same}),
            (full.loss, {name: full.gradients[name] for name in same}),
        )
        assert_leaves_close(other.gradients, full.gradients, tolerance=1e-6)


def remat_step(model: ModuleType, remat: Remat, fuse_backward: bool) -> LossAndGradients:
    """With the options that training compiles with."""
    params, batch = model.make_params(4), model.make_batch(4)
    table = lower(build("zb_h1", num_ranks=2, num_microbatches=4), fuse_backward=fuse_backward)
    program = make_program(model.CONTRACT, table, params, settings=Settings(remat=remat, fill=float("nan")))
    return compile_step(program, params, batch, model.make_constants(), options=AS_ALWAYS)(params, batch)


# Llama


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Run("gpipe", True), Run("zb_h1", False, 2)),
        (Run("gpipe", True), Run("looped_bfs")),
        (Run("1f1b", True), Run("v_half", transfer_ticks=2)),
        (Run("chimera"), Run("dualpipe", True)),
    ],
    ids=["schedules", "two-chunks", "v-shaped", "two-pipes"],
)
def test_llama_has_the_same_bits(first: Run, second: Run) -> None:
    """With the options that training compiles with."""
    params, batch = tiny_llama.make_params(8), tiny_llama.make_batch(NUM_MICROBATCHES)

    def run(run: Run) -> LossAndGradients:
        table = lower(run.schedule(4), transfer_ticks=run.transfer_ticks, fuse_backward=run.fuse_backward)
        program = make_program(tiny_llama.CONTRACT, table, params)
        step = compile_step(program, params, batch, tiny_llama.make_constants(), options=AS_ALWAYS)
        return step(params, batch)

    assert_same_bits(run(second), run(first))
