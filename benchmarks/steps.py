"""Whole steps that take turns in one process: each schedule's, the un-pipelined one, and PyTorch's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console

from benchmarks.cases import Case, config_of
from benchmarks.plain import accumulation
from benchmarks.programs import (
    compile_both,
    ready_pipelined,
    ready_unpipelined,
    task_of,
    unpipelined_step,
)
from benchmarks.sizes import case_figures, mesh_of, plain_accumulation, size_figures
from benchmarks.timing import ratios, spread, time_in_turn
from benchmarks.torch_peer import SCHEDULES, Experiment, Peer
from jaxpipe.training.plan import make_plan

PROGRESS = Console(stderr=True, highlight=False)
UNPIPELINED = "un-pipelined"
PLAIN = "plain"
PYTORCH = f"PyTorch {SCHEDULES[0]}"
"""Of PyTorch's schedules the one that ours are held against."""

AGAINST = {
    UNPIPELINED: ("unpipelined", "ratio"),
    PLAIN: ("plain", "ratio_to_plain"),
    PYTORCH: ("pytorch", "ratio_to_pytorch"),
    "1f1b": ("1f1b", "ratio_to_1f1b"),
}
"""Whose seconds others are divided by: their name in the row, and what the quotient's bounds begin with."""


def time_cases(
    cases: Sequence[Case],
    num_rounds: int,
    *,
    peer: Peer | None = None,
    experiments: Sequence[Experiment] = (),
) -> Iterator[dict[str, Any]]:
    """A row for each of the cases, which are alike but for their schedule, and for each experiment."""
    configs = [config_of(case) for case in cases]
    plans = [make_plan(config, mesh_of(case)) for case, config in zip(cases, configs, strict=True)]
    task, remat = task_of(plans[0], configs[0]), cases[0].remat
    accumulate = plain_accumulation(plans[0], remat)
    runs: dict[str, Callable[[], object]] = {}
    what = f"p={cases[0].num_ranks}, m={cases[0].num_microbatches}, remat {remat}"
    with PROGRESS.status(
        f"{what}: compiling {len(cases)} steps, each in turn with the un-pipelined one"
    ) as status:
        # all before anything is allocated: beside gigabytes of states a compilation takes longer
        compiled = [compile_both(plan.program, accumulate, task) for plan in plans]
        ours = [
            ready_pipelined(plan.program, task, each) for plan, (each, _) in zip(plans, compiled, strict=True)
        ]
        runs[UNPIPELINED] = ready_unpipelined(task, compiled[0][1]).run
        if cases[0].num_ranks == 1:
            fastest = accumulation(plans[0].program.contract, recompute=remat != "none")
            runs[PLAIN] = unpipelined_step(fastest, task).run
        if peer:
            runs |= {each.label: partial(peer.step, each) for each in experiments}
        runs |= {case.label: step.run for case, step in zip(cases, ours, strict=True)}
        status.update(f"{what}: {num_rounds} rounds of {len(runs)} steps")
        seconds = time_in_turn(runs, num_rounds)
    tokens = task.text[..., 1:].size
    for case, plan, both in zip(cases, plans, compiled, strict=True):
        yield case_figures(case, plan) | size_figures(*both) | time_figures(case.label, seconds, tokens)
    for each in experiments if peer else ():
        facts = {"schedule": each.label, "microbatches": each.microbatches, "remat": each.remat}
        yield facts | time_figures(each.label, seconds, tokens)


def time_figures(name: str, seconds: Mapping[str, Sequence[float]], tokens: int) -> dict[str, Any]:
    """Of one step, and of it over those of the same rounds that it is held against."""
    time = spread(seconds[name])
    figures = {
        "step_seconds": round(time.median, 4),
        "step_seconds_min": round(time.min, 4),
        "step_seconds_max": round(time.max, 4),
        "tokens_per_second": round(tokens / time.median, 1),
        "rounds": len(seconds[name]),
    }
    for base, (word, prefix) in AGAINST.items():
        if base in seconds:
            ratio = ratios(seconds[name], seconds[base])
            figures |= {
                f"{word}_seconds": round(spread(seconds[base]).median, 4),
                f"ratio_to_{word}": round(ratio.median, 4),
                f"{prefix}_min": round(ratio.min, 4),
                f"{prefix}_max": round(ratio.max, 4),
            }
    return figures
