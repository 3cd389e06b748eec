"""Every schedule that can be trained with: exact, and as large on a device as it says.

Llama with kv heads != heads, masked labels, uneven microbatches and, on four ranks, uneven stages.
"""

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import jax
import mlp
import numpy as np
import pytest
import tiny_llama
from programs import QUICK, assert_leaves_close, compile_step, make_program

from jaxpipe.lowering import lower
from jaxpipe.pipeline import Batch, LossAndGradients, Settings, Tree, buffer_shapes, to_stage_layout
from jaxpipe.pipeline.remat import Remat
from jaxpipe.schedules import GENERATORS, Schedule, build, simulate
from jaxpipe.training.reference import reference_loss_and_gradients

NAN = float("nan")
LEFT_TO_OTHERS = {"gpipe", "1f1b", "zb_h1"}
"""Which test_executor.py takes through many more sizes."""

REMATS: tuple[Remat, ...] = ("full", "selective", "none")


class Case(NamedTuple):
    """One way to run Llama."""

    schedule: str
    ranks: int
    microbatches: int
    num_layers: int
    tied: bool
    remat: Remat
    fuse_backward: bool
    transfer_ticks: int

    def __str__(self) -> str:
        return "-".join(map(str, self))


def cases() -> list[Case]:
    """Two of each; the rest of the choices goes round."""
    found = []
    for number, name in enumerate(name for name in [*GENERATORS, "auto"] if name not in LEFT_TO_OTHERS):
        few, many = (6, 10) if name == "dualpipe" else (3, 6)
        remat = REMATS[number % 3]
        fuse, ticks = number % 2 == 0, 1 + number // 2 % 2
        found += [
            Case(name, 2, few, 4, number % 4 < 2, remat, fuse, ticks),
            Case(name, 4, many, 9, number % 4 >= 2, REMATS[(number + 1) % 3], not fuse, 3 - ticks),
        ]
    return found


@pytest.mark.parametrize("case", cases(), ids=str)
def test_llama_has_the_loss_and_gradients_of_the_reference(case: Case) -> None:
    table = lower(
        build(case.schedule, num_ranks=case.ranks, num_microbatches=case.microbatches),
        transfer_ticks=case.transfer_ticks,
        fuse_backward=case.fuse_backward,
    )
    params = tiny_llama.make_params(case.num_layers, tied=case.tied)
    batch = tiny_llama.make_batch(case.microbatches)
    settings = Settings(remat=case.remat, fill=NAN, head_tokens=10)
    program = make_program(tiny_llama.CONTRACT, table, params, settings=settings)
    got = compile_step(program, params, batch, tiny_llama.make_constants())(params, batch)
    expected = reference(case.microbatches, case.num_layers, case.tied)
    assert got.num_tokens == expected.num_tokens
    np.testing.assert_allclose(got.loss, expected.loss, rtol=tiny_llama.TOLERANCE)
    assert_leaves_close(got.gradients, expected.gradients, tolerance=tiny_llama.TOLERANCE)


@cache
def reference(num_microbatches: int, num_layers: int, tied: bool) -> LossAndGradients:
    def run(params: Tree, batch: Batch, constants: Tree) -> LossAndGradients:
        return reference_loss_and_gradients(tiny_llama.CONTRACT, params, batch, constants)

    params, batch = tiny_llama.make_params(num_layers, tied=tied), tiny_llama.make_batch(num_microbatches)
    arguments = params, batch, tiny_llama.make_constants()
    return jax.jit(run).lower(*arguments).compile(QUICK)(*arguments)


def test_gpipe_backwards_in_reverse_is_exact_too() -> None:
    schedule = build("gpipe", num_ranks=2, num_microbatches=5, reverse_backward=True)
    params, batch = mlp.make_params(4), mlp.make_batch(5)
    program = make_program(mlp.CONTRACT, lower(schedule), params)
    got = compile_step(program, params, batch, mlp.make_constants())(params, batch)
    mlp.assert_equals_plain(got, params, batch)


# Memory: eight layers over four ranks, remat none, so that what is held outweighs all else


class Needed(NamedTuple):
    """Bytes of a device: planned for activations, and all that it needs beside arguments and results."""

    activations: int
    temporaries: int


@cache
def needed(name: str, num_microbatches: int) -> Needed:
    params, batch = mlp.make_params(8), mlp.make_batch(num_microbatches, batch=8)
    table = lower(ordered(name, num_microbatches))
    program = make_program(mlp.CONTRACT, table, params, settings=Settings(remat="none"))
    step = compile_step(program, params, batch, mlp.make_constants())
    staged = to_stage_layout(params, program.layout)
    buffers = buffer_shapes(program, staged, batch, mlp.make_constants())
    activations = jax.tree.leaves(
        (buffers.inbox, buffers.residuals, buffers.linear_inputs, buffers.weight_inputs)
    )
    return Needed(
        sum(leaf.size * leaf.dtype.itemsize for leaf in activations),
        step.compiled.memory_analysis().temp_size_in_bytes,
    )


def ordered(name: str, num_microbatches: int) -> Schedule:
    return build(name, num_ranks=4, num_microbatches=num_microbatches)


def held(name: str, num_microbatches: int) -> float:
    """The most that a rank holds until W, in activations of its two layers."""
    schedule = ordered(name, num_microbatches)
    return max(simulate(schedule).peak_until_weight) / schedule.placement.num_chunks


@pytest.mark.parametrize(
    "names",
    [("1f1b", "interleaved", "gpipe"), ("v_min", "v_half", "dualpipe_v", "zb_h2")],
    ids=["W follows B", "W waits"],
)
def test_a_device_needs_more_the_more_the_schedule_holds(names: tuple[str, ...]) -> None:
    """With one pipe; where W waits it does so for more than an activation."""
    assert sorted(names, key=lambda name: held(name, 16)) == list(names)
    bytes_needed = [needed(name, 16).temporaries for name in names]
    assert bytes_needed == sorted(bytes_needed)
    assert len(set(bytes_needed)) == len(names)


def test_bytes_rise_in_the_order_of_what_is_planned_for_activations() -> None:
    """All schedules: what waits from F for B, and from B for W, each in its own bytes; two pipes apart.

    What W waits for is larger than an activation here, so zb_h1, whose W wait longest, needs more than others
    that hold as many activations.
    """
    for names in (set(GENERATORS) - {"chimera", "dualpipe"}, {"chimera", "dualpipe"}):
        in_order = sorted(names, key=lambda name: needed(name, 16).activations)
        for less, more in pairwise(in_order):
            planned = needed(more, 16).activations - needed(less, 16).activations
            assert needed(less, 16).temporaries - needed(more, 16).temporaries <= max(-planned, 0) + TRANSIENT


TRANSIENT = 8_192
"""Bytes: what XLA keeps for one layer's work differs a little from program to program."""


@pytest.mark.parametrize(
    "names",
    [[name for name in GENERATORS if name not in ("chimera", "dualpipe")], ["chimera", "dualpipe"]],
    ids=["one pipe", "two pipes"],
)
def test_a_device_needs_what_is_planned_and_little_else(names: list[str]) -> None:
    """The rest is weights' gradients, and the work of one layer: the same for all, to a few per cent."""
    rest = {name: needed(name, 16).temporaries - needed(name, 16).activations for name in names}
    assert max(rest.values()) - min(rest.values()) < 0.1 * needed("1f1b", 16).activations, rest


@pytest.mark.parametrize("name", [name for name in GENERATORS if name not in ("gpipe", "looped_bfs")])
def test_a_device_needs_no_more_for_more_microbatches(name: str) -> None:
    """But for the batch itself and the rows of the table: less than one activation for sixteen more."""
    assert held(name, 16) == held(name, 32)
    more = needed(name, 32).temporaries - needed(name, 16).temporaries
    assert more < needed("gpipe", 16).temporaries / 16
