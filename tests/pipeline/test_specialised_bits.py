"""Segments as programs of their own: the bits of the scan, and no message that nobody needs."""

import re
from collections import Counter
from dataclasses import dataclass

import hlo
import jax
import mlp
import numpy as np
import pytest
from programs import QUICK, Step, assert_same_bits, compile_step, make_program

from jaxpipe.lowering import TickTable, lower
from jaxpipe.pipeline import (
    LossAndGradients,
    Settings,
    make_empty_slots,
    make_loss_and_gradients_in_slots,
    to_canonical_layout,
    to_stage_layout,
)
from jaxpipe.schedules import build, with_recompute

NUM_MICROBATCHES = 8
PARAMS, BATCH = mlp.make_params(4), mlp.make_batch(NUM_MICROBATCHES)


@dataclass(frozen=True)
class Case:
    """A schedule, lowered."""

    name: str
    num_ranks: int
    transfer_ticks: int = 1
    fuse_backward: bool = False
    recomputes: bool = False

    def __str__(self) -> str:
        return f"{self.name}{'-with-r' * self.recomputes}"

    def table(self) -> TickTable:
        schedule = build(self.name, num_ranks=self.num_ranks, num_microbatches=NUM_MICROBATCHES)
        ticks = self.transfer_ticks
        if self.recomputes:
            schedule = with_recompute(schedule, sync="neighbor", transfer_ticks=ticks)
        return lower(schedule, transfer_ticks=ticks, fuse_backward=self.fuse_backward)


def step_of(table: TickTable, *, specialised: bool) -> Step:
    """Buffers hold NaN until they are written."""
    settings = Settings(specialised=specialised, fill=float("nan"))
    program = make_program(mlp.CONTRACT, table, PARAMS, settings=settings)
    return compile_step(program, PARAMS, BATCH, mlp.make_constants())


@pytest.mark.parametrize(
    "case",
    [
        Case("1f1b", 3, transfer_ticks=2, fuse_backward=True),
        Case("zb_v", 2),
        Case("dualpipe", 2),
        Case("zb_h1", 2, recomputes=True),
    ],
    ids=str,
)
def test_segments_give_the_bits_of_the_scan(case: Case) -> None:
    """Loss and all gradients."""
    table = case.table()
    scan, segments = (step_of(table, specialised=specialised) for specialised in (False, True))
    assert len(scan.program.segments) == 1
    assert len(segments.program.segments) > 3
    assert_same_bits(segments(PARAMS, BATCH), scan(PARAMS, BATCH))


@pytest.mark.parametrize(
    "case",
    [Case("dualpipe", 2, fuse_backward=True), Case("1f1b", 2, transfer_ticks=2, recomputes=True)],
    ids=str,
)
def test_the_ticks_of_segments_are_timed_one_by_one(case: Case) -> None:
    """And the marks change no bit of the scan's."""
    table = case.table()
    program = step_of(table, specialised=True).program
    arguments = to_stage_layout(PARAMS, program.layout), BATCH, mlp.make_constants()
    slots = make_empty_slots(program, *arguments)()
    timed = jax.jit(make_loss_and_gradients_in_slots(program, timed=True))
    (result, stamps), _ = jax.tree.map(
        np.asarray, timed.lower(*arguments, slots).compile(QUICK)(*arguments, slots)
    )
    found = LossAndGradients(*result[:2], to_canonical_layout(result.gradients, program.layout))
    assert_same_bits(found, step_of(table, specialised=False)(PARAMS, BATCH))
    assert stamps.shape == (table.num_ticks, case.num_ranks, 4, 2)
    nanoseconds = stamps[..., 0].astype(np.int64) * 10**9 + stamps[..., 1]
    assert (np.diff(nanoseconds.transpose(1, 0, 2).reshape(case.num_ranks, -1)) >= 0).all()


def test_segments_of_1f1b_send_each_message_once_and_nothing_else() -> None:
    """Over each hop one of each microbatch; the scan sends over each hop at every tick."""
    table = Case("1f1b", 4, fuse_backward=True).table()
    scan, segments = (messages_of(step_of(table, specialised=specialised)) for specialised in (False, True))
    hops = {(rank, rank + 1) for rank in range(3)} | {(rank + 1, rank) for rank in range(3)}
    assert scan == Counter(dict.fromkeys(hops, table.num_ticks))
    assert segments == Counter(dict.fromkeys(hops, NUM_MICROBATCHES))


def test_the_first_segment_of_1f1b_sends_nothing_down() -> None:
    """Nor the next ones, before the last rank has a gradient: ranks above are not waited for in warm-up."""
    step = step_of(Case("1f1b", 4, fuse_backward=True).table(), specialised=True)
    computations = hlo.parse(step.compiled.as_text())
    in_loop = hlo.tick_body(computations)
    alone = [
        pairs_of(instruction)
        for where, computation in computations.items()
        if where != in_loop
        for instruction in computation.values()
        if instruction.opcode == "collective-permute"
    ]
    assert alone[:3] == [[(0, 1)], [(0, 1), (1, 2)], [(0, 1), (1, 2), (2, 3)]]


def messages_of(step: Step) -> Counter[tuple[int, int]]:
    """How often a step sends from a rank to another, those in the loop over ticks as often as that runs."""
    computations = hlo.parse(step.compiled.as_text())
    in_loop = hlo.tick_body(computations)
    (loop,) = (each for each in hlo.instructions(computations) if each.called.get("body") == in_loop)
    (trips,) = re.findall(r'"known_trip_count":\{"n":"(\d+)"', loop.line)
    return Counter(
        pair
        for where, computation in computations.items()
        for instruction in computation.values()
        if instruction.opcode == "collective-permute"
        for pair in pairs_of(instruction) * (int(trips) if where == in_loop else 1)
    )


def pairs_of(permute: hlo.Instruction) -> list[tuple[int, int]]:
    (pairs,) = re.findall(r"source_target_pairs=\{([\d{},]*)\}", permute.line)
    return [(int(source), int(target)) for source, target in re.findall(r"\{(\d+),(\d+)\}", pairs)]
