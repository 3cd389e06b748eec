"""Which schedule a configuration means: a name, a CSV file, or what its sizes suggest."""

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from jaxpipe.config.sections import Config
from jaxpipe.schedules import GENERATORS, Schedule, build, default_schedule, find_faults
from jaxpipe.schedules.auto import Memory, Timing, find_schedule, place_recompute
from jaxpipe.schedules.costs import UNIT_COSTS
from jaxpipe.schedules.schedule_file import is_file, read_schedule_file

AUTO = "auto"

_MOST_PIPES = 2
"""The executor makes one further copy of the weights, not more."""


class ScheduleChoice(NamedTuple):
    """The keys that choose a schedule: those of ``pipeline``, ``mesh.pp`` and ``model.num_hidden_layers``."""

    schedule: str | None
    num_ranks: int
    num_microbatches: int
    num_chunks: int | None
    reverse_backward: bool
    memory_limit: int | None
    transfer_ticks: int
    fuse_backward: bool
    schedule_recompute: bool
    num_layers: int

    @property
    def name(self) -> str:
        """What was asked for, or the default."""
        return self.schedule or default_schedule(self.num_ranks, self.num_chunks or 1)

    @property
    def options(self) -> dict[str, int]:
        """Those of the generator that were given."""
        given = {"reverse_backward": 1} if self.reverse_backward else {}
        return given if self.memory_limit is None else given | {"memory_limit": self.memory_limit}

    @property
    def timing(self) -> Timing:
        """How ranks wait for each other in the program that will run."""
        return Timing(sync="neighbor", transfer_ticks=self.transfer_ticks, fuse_backward=self.fuse_backward)


def choice_of(config: Config) -> ScheduleChoice:
    """The choice that a configuration makes."""
    pipeline = config.pipeline
    return ScheduleChoice(
        schedule=pipeline.schedule,
        num_ranks=config.mesh.pp,
        num_microbatches=pipeline.num_microbatches,
        num_chunks=pipeline.num_chunks,
        reverse_backward=pipeline.reverse_backward,
        memory_limit=pipeline.memory_limit,
        transfer_ticks=pipeline.transfer_ticks,
        fuse_backward=pipeline.fuse_backward,
        schedule_recompute=pipeline.schedule_recompute,
        num_layers=config.model.num_hidden_layers,
    )


def make_schedule(choice: ScheduleChoice) -> Schedule:
    """The schedule of a choice without faults, with R if it asks for them; placed at F = B = W = R."""
    if choice.name == AUTO:
        return _search(choice)
    if is_file(choice.name):
        schedule = _read_file(choice.name)
    else:
        sizes = {"num_ranks": choice.num_ranks, "num_microbatches": choice.num_microbatches}
        schedule = build(choice.name, num_chunks=choice.num_chunks, **sizes, **choice.options)
    if choice.schedule_recompute and not schedule.recomputes:
        return place_recompute(schedule, UNIT_COSTS, choice.timing)
    return schedule


def find_choice_faults(choice: ScheduleChoice) -> Iterator[str]:
    """All that is wrong with it, each beginning with the key."""
    if is_file(choice.name):
        yield from _find_file_faults(choice)
        return
    sizes = {"num_ranks": choice.num_ranks, "num_microbatches": choice.num_microbatches}
    found = find_faults(choice.name, num_chunks=choice.num_chunks, **sizes, **choice.options)
    yield from (f"pipeline.schedule: {fault}" for fault in found)


def chunks_of(choice: ScheduleChoice) -> int | None:
    """Stages per rank, or None if the choice has faults that leave this open."""
    if is_file(choice.name):
        try:
            return _read_file(choice.name).placement.num_chunks
        except ValueError:
            return None
    if choice.name == AUTO:
        return 1  # at least: it takes no more chunks than there are layers for
    if choice.num_chunks is not None:
        return choice.num_chunks
    return GENERATORS[choice.name].default_chunks if choice.name in GENERATORS else None


def _find_file_faults(choice: ScheduleChoice) -> Iterator[str]:
    try:
        schedule = _read_file(choice.name)
    except ValueError as error:
        yield f"pipeline.schedule: {error}"
        return
    held = {
        "mesh.pp": (choice.num_ranks, schedule.num_ranks),
        "pipeline.num_microbatches": (choice.num_microbatches, schedule.num_microbatches),
        "pipeline.num_chunks": (choice.num_chunks, schedule.placement.num_chunks),
    }
    for key, (given, has) in held.items():
        if given not in (None, has):
            yield f"{key}={given} must be the {has} of pipeline.schedule={choice.name!r}; use {has}"
    if schedule.placement.num_pipes > _MOST_PIPES:
        yield (
            f"pipeline.schedule={choice.name!r} has {schedule.placement.num_pipes} pipes, but at most "
            f"{_MOST_PIPES} can be run; use such a schedule"
        )
    if schedule.recomputes and not choice.schedule_recompute:
        yield (
            f"pipeline.schedule={choice.name!r} has R, recomputation as an action of its own; give "
            "pipeline.schedule_recompute, or use a schedule without R"
        )
    if choice.reverse_backward:
        yield "pipeline.reverse_backward is for gpipe by name; leave it out"
    if choice.memory_limit is not None:
        yield "pipeline.memory_limit is for auto; leave it out"


def _read_file(path: str) -> Schedule:
    """``read_schedule_file``, which takes seconds for a large one, once for all rules and the plan."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return read_schedule_file(path)  # which says why
    return _read_unchanged(path, status.st_ino, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=2)
def _read_unchanged(path: str, *_: int) -> Schedule:
    """The numbers tell one state of a file from another."""
    return read_schedule_file(path)


@lru_cache(maxsize=8)
def _search(choice: ScheduleChoice) -> Schedule:
    """The best order for the program that will run: in ticks, F = B = W = R, no more chunks than layers."""
    default = GENERATORS["interleaved"].default_chunks
    most = min(choice.num_chunks or default, choice.num_layers // choice.num_ranks)
    return find_schedule(
        choice.num_ranks,
        choice.num_microbatches,
        timing=choice.timing,
        memory=None if choice.memory_limit is None else Memory(choice.memory_limit),
        chunks=range(1, most + 1),
        recompute=choice.schedule_recompute,
    ).schedule
