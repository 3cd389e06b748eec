"""Two pipes in opposite directions have the loss and gradients of the un-pipelined model.

Orders are those of the papers, and random ones over the mirrored placement: whatever is legal must be right.
"""

from typing import NamedTuple

import legal_orders
import mlp
import pytest
import tiny_llama
from programs import compile_step, make_program

from jaxpipe.lowering import TickTable, lower
from jaxpipe.pipeline import Settings
from jaxpipe.pipeline.remat import Remat
from jaxpipe.schedules import build, mirrored


class Case(NamedTuple):
    """``order``: a schedule's name, or the seed of a random legal order.

    layers: of each stage; rank r has those of stage r, and of stage p-1-r for pipe 1.
    """

    order: str | int

    layers: tuple[int, ...]
    microbatches: int
    tied: bool
    remat: Remat
    fuse_backward: bool
    transfer_ticks: int
    dp: int

    def __str__(self) -> str:
        return "-".join(map(str, self)).replace(" ", "")


def lowered(case: Case) -> TickTable:
    num_ranks, num_microbatches = len(case.layers), case.microbatches
    if isinstance(case.order, str):
        schedule = build(case.order, num_ranks=num_ranks, num_microbatches=num_microbatches)
    else:
        schedule = legal_orders.random_order(mirrored(num_ranks), num_microbatches, case.order)
    return lower(schedule, transfer_ticks=case.transfer_ticks, fuse_backward=case.fuse_backward)


def settings(case: Case) -> Settings:
    return Settings(remat=case.remat, fill=float("nan"), head_tokens=10)


@pytest.mark.parametrize(
    "case",
    [
        Case(0, (1, 3), 4, tied=False, remat="full", fuse_backward=True, transfer_ticks=1, dp=1),
        Case(
            "chimera", (2, 1, 3, 1), 5, tied=True, remat="none", fuse_backward=False, transfer_ticks=2, dp=2
        ),
        Case(2, (2, 1, 2), 4, tied=False, remat="full", fuse_backward=False, transfer_ticks=2, dp=1),
        Case(3, (3,), 2, tied=True, remat="full", fuse_backward=True, transfer_ticks=1, dp=1),
        Case(4, (1, 2), 1, tied=False, remat="selective", fuse_backward=True, transfer_ticks=1, dp=1),
    ],
    ids=str,
)
def test_a_stage_that_is_no_llama(case: Case) -> None:
    """Also an odd number of ranks, one rank, and a pipe without a microbatch."""
    params = mlp.make_params(sum(case.layers), tied=case.tied)
    batch = mlp.make_batch(case.microbatches)
    program = make_program(
        mlp.CONTRACT,
        lowered(case),
        params,
        layers_per_stage=case.layers,
        dp=case.dp,
        settings=settings(case),
    )
    step = compile_step(program, params, batch, mlp.make_constants())
    mlp.assert_equals_plain(step(params, batch), params, batch)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case("chimera", (2, 2), 5, tied=True, remat="full", fuse_backward=False, transfer_ticks=2, dp=2),
            marks=pytest.mark.slow,
        ),
        Case(
            "dualpipe",
            (1, 1, 1, 1),
            8,
            tied=False,
            remat="selective",
            fuse_backward=True,
            transfer_ticks=1,
            dp=1,
        ),
    ],
    ids=str,
)
def test_llama(case: Case) -> None:
    params, batch = tiny_llama.make_params(tied=case.tied), tiny_llama.make_batch(case.microbatches)
    program = make_program(
        tiny_llama.CONTRACT,
        lowered(case),
        params,
        layers_per_stage=case.layers,
        dp=case.dp,
        settings=settings(case),
    )
    step = compile_step(program, params, batch, tiny_llama.make_constants())
    tiny_llama.assert_equals_reference(step(params, batch), case.microbatches, tied=case.tied)
