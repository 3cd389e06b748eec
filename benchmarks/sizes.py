"""What a step compiles to: ticks, bytes and compile time. Nothing runs, and nothing is allocated."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from jax.sharding import Mesh

from benchmarks.cases import Case, Remat, config_of, make_case
from benchmarks.programs import (
    Compiled,
    LossAndGradientsOf,
    compile_both,
    task_of,
)
from jaxpipe.schedules import Kind, peak_held
from jaxpipe.training.devices import make_mesh
from jaxpipe.training.plan import Plan, make_plan
from jaxpipe.training.reference import reference_loss_and_gradients


def compile_cases(cases: Iterable[Case]) -> Iterator[dict[str, Any]]:
    """A row for each, as it comes."""
    for case in cases:
        config = config_of(case)
        plan = make_plan(config, mesh_of(case))
        plain = plain_accumulation(plan, case.remat)
        yield case_figures(case, plan) | size_figures(
            *compile_both(plan.program, plain, task_of(plan, config))
        )


def warm_up() -> None:
    """What a process compiles first takes longer: let that be a small step."""
    small = make_case("1f1b", 1, "full")._replace(num_ranks=1, num_layers=1)
    assert list(compile_cases([small]))


def mesh_of(case: Case) -> Mesh:
    """The devices of a case alone."""
    return make_mesh(dp=1, pp=case.num_ranks, tp=1)


def plain_accumulation(plan: Plan, remat: Remat) -> LossAndGradientsOf:
    """The same model un-pipelined: a scan over microbatches that adds up what autodiff gives."""
    return partial(reference_loss_and_gradients, plan.program.contract, recompute=remat != "none")


def case_figures(case: Case, plan: Plan) -> dict[str, Any]:
    """What was run, and how."""
    return {
        "schedule": case.schedule,
        "ranks": case.num_ranks,
        "chunks": plan.schedule.placement.num_chunks,
        "microbatches": case.num_microbatches,
        "layers": case.num_layers,
        "remat": case.remat,
        "fuse_backward": case.fuse_backward,
        "transfer_ticks": case.transfer_ticks,
        "program": case.program,
        "num_ticks": plan.program.table.num_ticks,
        "held": max(peak_held(plan.schedule, Kind.W)),
    }


def size_figures(compiled: Compiled, plain: Compiled) -> dict[str, Any]:
    """What it compiled to, and how long that took, against the un-pipelined step."""
    return {
        "compile_seconds": round(compiled.seconds, 3),
        "unpipelined_compile_seconds": round(plain.seconds, 3),
        "compile_ratio": round(compiled.seconds / plain.seconds, 3),
        "temp_bytes_per_device": compiled.temp_bytes,
    }
