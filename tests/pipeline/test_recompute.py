"""Recomputation as an action of its own: exact, the same bits whatever the order, and as large as it says."""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import jax
import mlp
import pytest
import tiny_llama
from programs import assert_same_bits, compile_step, make_program

from jaxpipe.lowering import TickTable, lower, replay
from jaxpipe.lowering.table import RECOMPUTE
from jaxpipe.pipeline import LossAndGradients, Settings, Sharding, buffer_shapes, to_stage_layout
from jaxpipe.pipeline.remat import Remat
from jaxpipe.schedules import build, with_recompute

NAN = float("nan")


def table_of(name: str, num_ranks: int, num_microbatches: int, **lowering: int) -> TickTable:
    """With R, and proved."""
    schedule = with_recompute(
        build(name, num_ranks=num_ranks, num_microbatches=num_microbatches),
        sync="neighbor",
        transfer_ticks=lowering.get("transfer_ticks", 1),
        most_held=2,
    )
    table = lower(schedule, **lowering)  # type: ignore[arg-type]
    replay(table, schedule)
    return table


class Case(NamedTuple):
    """One way to run Llama of four layers."""

    schedule: str
    ranks: int
    microbatches: int
    tied: bool
    fuse_backward: bool
    transfer_ticks: int

    def __str__(self) -> str:
        return "-".join(map(str, self))


CASES = [
    Case("1f1b", 2, 5, True, True, 1),
    Case("zb_h1", 4, 6, False, False, 1),
    Case("interleaved", 2, 4, True, False, 2),
    Case("zb_v", 2, 5, False, False, 1),
    Case("dualpipe_v", 2, 5, True, True, 2),
    Case("dualpipe", 2, 6, False, False, 1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_llama_has_the_loss_and_gradients_of_the_reference(case: Case) -> None:
    """All buffers hold NaN until they are written."""
    table = table_of(
        case.schedule,
        case.ranks,
        case.microbatches,
        fuse_backward=case.fuse_backward,
        transfer_ticks=case.transfer_ticks,
    )
    params, batch = tiny_llama.make_params(tied=case.tied), tiny_llama.make_batch(case.microbatches)
    program = make_program(tiny_llama.CONTRACT, table, params, settings=Settings(fill=NAN, head_tokens=10))
    got = compile_step(program, params, batch, tiny_llama.make_constants())(params, batch)
    tiny_llama.assert_equals_reference(got, case.microbatches, tied=case.tied)


def test_uneven_stages_and_shards_are_exact_too() -> None:
    """A dynamic number of layers; ZeRO 3 gathers each layer's weights for R once more."""
    params, batch = mlp.make_params(4), mlp.make_batch(5, batch=4)
    program = make_program(
        mlp.CONTRACT,
        table_of("1f1b", 2, 5),
        params,
        layers_per_stage=(1, 3),
        dp=2,
        sharding=Sharding(tp=1, zero=3, sequence=False, splits=mlp.CONTRACT.splits),
    )
    got = compile_step(program, params, batch, mlp.make_constants())(params, batch)
    mlp.assert_equals_plain(got, params, batch)


@cache
def mlp_step(name: str, transfer_ticks: int, fuse_backward: bool, fill: float) -> LossAndGradients:
    table = table_of(name, 2, 6, transfer_ticks=transfer_ticks, fuse_backward=fuse_backward)
    params, batch = mlp.make_params(4), mlp.make_batch(6)
    program = make_program(mlp.CONTRACT, table, params, settings=Settings(fill=fill))
    return compile_step(program, params, batch, mlp.make_constants())(params, batch)


@pytest.mark.parametrize(
    ("name", "transfer_ticks", "fuse_backward"),
    [("1f1b", 1, True), ("1f1b", 2, False), ("zb_h1", 1, False), ("zb_v", 2, False)],
)
def test_all_orders_give_the_same_bits(name: str, transfer_ticks: int, fuse_backward: bool) -> None:
    """As gpipe, whose buffers start as 0, not as NaN."""
    assert_same_bits(mlp_step(name, transfer_ticks, fuse_backward, NAN), mlp_step("gpipe", 1, True, 0.0))


# Memory


def shapes(table: TickTable, remat: Remat) -> dict[str, list[tuple[int, ...]]]:
    """Of each buffer of a device."""
    params, batch = mlp.make_params(4), mlp.make_batch(table.num_microbatches)
    program = make_program(mlp.CONTRACT, table, params, settings=Settings(remat=remat))
    staged = to_stage_layout(params, program.layout)
    buffers = buffer_shapes(program, staged, batch, mlp.make_constants())
    return {name: [leaf.shape for leaf in jax.tree.leaves(part)] for name, part in buffers._asdict().items()}


def test_f_leaves_inputs_of_layers_for_r_and_r_what_f_leaves_without_remat() -> None:
    """In 1f1b of four ranks F's wait for R in four slots, R's for B in one."""
    again = shapes(table_of("1f1b", 4, 8), "full")
    without = shapes(lower(build("1f1b", num_ranks=4, num_microbatches=8)), "none")
    tokens = 2 * mlp.SEQUENCE
    assert again["layer_inputs"] == [(4, 1, tokens, mlp.HIDDEN)]
    assert without["layer_inputs"] == []
    for part in ("residuals", "linear_inputs"):
        assert {shape[0] for shape in again[part]} <= {1, 2}
        assert [shape[1:] for shape in again[part]] == [shape[1:] for shape in without[part]]


@pytest.mark.parametrize("remat", ["none", "selective"])
def test_r_is_for_full_remat(remat: Remat) -> None:
    with pytest.raises(AssertionError, match=f"a table with R is for remat full, not {remat}"):
        shapes(table_of("1f1b", 4, 8), remat)


def test_what_b_reads_is_what_r_has_made() -> None:
    """Gradients change if R takes another microbatch's input: nothing that F or B makes hides it."""
    table, params, batch = table_of("gpipe", 1, 2), mlp.make_params(2), mlp.make_batch(2)
    slots = table.ranks.recompute_slot.copy()
    of_r = table.ranks.kind == RECOMPUTE
    slots[of_r] = slots[of_r][::-1]
    wrong = replace(table, ranks=table.ranks._replace(recompute_slot=slots))

    def step(table: TickTable) -> LossAndGradients:
        program = make_program(mlp.CONTRACT, table, params)
        return compile_step(program, params, batch, mlp.make_constants())(params, batch)

    mlp.assert_equals_plain(step(table), params, batch)
    with pytest.raises(AssertionError, match="off by"):
        mlp.assert_equals_plain(step(wrong), params, batch)
