"""What XLA made of a step on meshes with copies and shared ranks: where it communicates, and how often."""

from collections import Counter
from functools import cache

import hlo
import pytest
from programs import Step, compile_step, make_program
from test_compiled_program import NUM_RANKS, SAME_HLO, faults, llama_model

from jaxpipe.lowering import lower
from jaxpipe.pipeline import Settings, Sharding
from jaxpipe.schedules import build


@cache
def compiled(
    schedule: str,
    *,
    dp: int,
    pp: int,
    tp: int = 1,
    zero: int = 0,
    num_layers: int = 8,
    m: int = 8,
) -> Step:
    contract, params, batch, constants = llama_model(num_layers)
    batch = batch._replace(
        tokens=batch.tokens[:1].repeat(m, 0).repeat(dp, 1), labels=batch.labels[:1].repeat(m, 0).repeat(dp, 1)
    )
    program = make_program(
        contract,
        lower(build(schedule, num_ranks=pp, num_microbatches=m)),
        params,
        dp=dp,
        sharding=Sharding(tp=tp, zero=zero, sequence=tp > 1, splits=contract.splits),
        settings=Settings(),
    )
    return compile_step(program, params, batch, constants, options=SAME_HLO)


def collectives(step: Step, *, in_loops: bool) -> Counter[str]:
    """All instructions that communicate, or those that loops repeat."""
    computations = hlo.parse(step.compiled.as_text())
    found = set()
    if in_loops:
        for instruction in hlo.instructions(computations):
            if body := instruction.called.get("body"):
                found |= {
                    (at, inner.name) for at, inner in hlo.reachable(computations, body, into_loops=True)
                }
    else:
        found = {(at, name) for at, computation in computations.items() for name in computation}
    kinds = (computations[at][name].opcode for at, name in found)
    return Counter(kind for kind in kinds if kind in (*hlo.COLLECTIVES, "collective-permute"))


@pytest.mark.parametrize("zero", [0, 1])
def test_gradients_are_reduced_once_after_the_ticks(zero: int) -> None:
    """One rank and two copies: nothing else communicates, so no loop holds a collective."""
    step = compiled("1f1b", dp=2, pp=1, zero=zero)
    assert collectives(step, in_loops=True) == {}
    assert sum(collectives(step, in_loops=False).values()) >= 1


@pytest.mark.parametrize("zero", [2, 3])
def test_from_zero_2_on_they_are_reduced_layer_by_layer(zero: int) -> None:
    """The counterpart, and so the test above can fail."""
    assert collectives(compiled("1f1b", dp=2, pp=1, zero=zero), in_loops=True)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_the_number_of_collectives_does_not_depend_on_microbatches(zero: int) -> None:
    few, many = (compiled("1f1b", dp=2, pp=2, tp=2, zero=zero, m=m) for m in (4, 16))
    assert collectives(few, in_loops=False) == collectives(many, in_loops=False)


@pytest.mark.parametrize(
    "mesh",
    [
        {"dp": 1, "tp": 2},
        {"dp": 2, "zero": 3},
        {"dp": 2, "zero": 2, "num_layers": 6},
    ],
    ids=str,
)
@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_an_idle_tick_neither_computes_nor_communicates_but_for_two_messages(
    schedule: str, mesh: dict[str, int]
) -> None:
    """No gathering of weights, no sum over devices: those are inside the loops of the actions."""
    step = compiled(schedule, pp=NUM_RANKS, **mesh)
    model = llama_model(mesh.get("num_layers", 8))
    batch = model.batch._replace(
        tokens=model.batch.tokens.repeat(mesh["dp"], 1), labels=model.batch.labels.repeat(mesh["dp"], 1)
    )
    assert faults(step, model._replace(batch=batch)) == []
