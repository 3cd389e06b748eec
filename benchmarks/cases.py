"""What ``make bench`` measures, as data: the steps that take turns, and those that are only compiled.

The model is that of configs/bench.yaml, and a microbatch keeps its size whatever their number. Where ranks
or chunks vary it has ``MANY_LAYERS``, so that eight ranks of two chunks, and four of four, have stages.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from jaxpipe.config import Config, from_yaml
from jaxpipe.schedules import GENERATORS, find_faults

CONFIG = Path(__file__).parents[1] / "configs" / "bench.yaml"
NUM_RANKS = 4
NUM_LAYERS = 8
MANY_LAYERS = 16

VARIED_M = (4, 8, 16, 64)
VARIED_P = (2, 4, 8)
VARIED_V = (1, 2, 4)
MICROBATCHES = 16
"""Where p or v vary: twice the most ranks, as dualpipe needs."""

SELECTION = ("gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe")
"""One of each kind: the ``selection`` of the default run."""

Remat = Literal["full", "selective", "none"]


class Case(NamedTuple):
    """One pipelined step."""

    schedule: str
    num_chunks: int
    num_microbatches: int
    remat: Remat
    fuse_backward: bool = True
    num_ranks: int = NUM_RANKS
    num_layers: int = NUM_LAYERS
    transfer_ticks: Literal[1, 2] = 1
    program: Literal["scan", "segments"] = "scan"

    @property
    def label(self) -> str:
        """What tells it from the other steps that it takes turns with."""
        return label_of(self.schedule, transfer_ticks=self.transfer_ticks, program=self.program)


def label_of(schedule: str, *, transfer_ticks: int, program: str) -> str:
    """The name of a step, or of its figures."""
    hidden = ", messages hidden" if transfer_ticks == 2 else ""
    return f"{schedule}{hidden}{', segments' if program == 'segments' else ''}"


def make_case(schedule: str, num_microbatches: int, remat: Remat, *, fuse_backward: bool = True) -> Case:
    """The case of four ranks, with as many chunks as the schedule needs."""
    return Case(schedule, GENERATORS[schedule].default_chunks, num_microbatches, remat, fuse_backward)


def find_case_faults(case: Case) -> list[str]:
    """Why its schedule cannot have these sizes, or its model these stages; nothing if all is well."""
    faults = find_faults(
        case.schedule,
        num_ranks=case.num_ranks,
        num_microbatches=case.num_microbatches,
        num_chunks=case.num_chunks,
    )
    num_stages = case.num_ranks * case.num_chunks
    if num_stages > case.num_layers:
        faults.append(f"{num_stages} stages must have a layer each, but there are {case.num_layers}")
    return faults


def steps_in_turn(
    schedules: Iterable[str], num_microbatches: int, remat: Remat, *, fuse_backward: bool
) -> Iterator[Case]:
    """The steps of one turn: every schedule; 1f1b also with its messages hidden, and as segments."""
    for schedule in schedules:
        case = make_case(schedule, num_microbatches, remat, fuse_backward=fuse_backward)
        yield case
        if schedule == "1f1b":
            yield case._replace(transfer_ticks=2)
            yield case._replace(program="segments")


def only_compiled(
    schedules: Sequence[str],
    *,
    remats: Sequence[Remat],
    timed: Sequence[int],
    selection: Sequence[str],
    fuse_backward: bool,
) -> Iterator[Case]:
    """Steps that vary m, then p and v, none twice.

    timed: numbers of microbatches that are left out, since their steps are compiled and timed elsewhere.
    selection: the schedules whose p varies, and that are compiled with a remat other than full, for the
        greatest m alone, to be held against those that are timed.
    """
    for remat in remats:
        names = [name for name in schedules if remat == "full" or name in selection]
        for m in VARIED_M if remat == "full" else VARIED_M[-1:]:
            if m not in timed:
                yield from (make_case(name, m, remat, fuse_backward=fuse_backward) for name in names)
    large = [
        make_case(name, MICROBATCHES, "full", fuse_backward=fuse_backward)._replace(num_layers=MANY_LAYERS)
        for name in schedules
    ]
    by_rank = [case._replace(num_ranks=p) for p in VARIED_P for case in large if case.schedule in selection]
    by_chunk = [case._replace(num_chunks=v) for v in VARIED_V for case in large if _may_have(case, v)]
    yield from dict.fromkeys(by_rank + by_chunk)


def takes_chunks(schedule: str) -> bool:
    """Whether a rank may have any number of chunks in it, from a least one on."""
    return GENERATORS[schedule].num_chunks[1] is None


def _may_have(case: Case, num_chunks: int) -> bool:
    return takes_chunks(case.schedule) and num_chunks >= GENERATORS[case.schedule].num_chunks[0]


def config_of(case: Case) -> Config:
    """The benchmark's configuration with the case's sizes."""
    config = from_yaml(CONFIG.read_text(), name=CONFIG.name)
    batch = config.train.global_batch_size // config.pipeline.num_microbatches
    return replace(
        config,
        model=replace(config.model, num_hidden_layers=case.num_layers),
        mesh=replace(config.mesh, pp=case.num_ranks),
        pipeline=replace(
            config.pipeline,
            schedule=case.schedule,
            num_microbatches=case.num_microbatches,
            num_chunks=case.num_chunks,
            transfer_ticks=case.transfer_ticks,
            program=case.program,
            fuse_backward=case.fuse_backward,
            remat=case.remat,
        ),
        train=replace(config.train, global_batch_size=batch * case.num_microbatches),
    )
