"""The step whose ticks are timed, ``run.trace_step``, and the file that this leaves.

    step - 3, step - 2   as always, but waited for: how long a step takes without marks
    step - 1             with marks, which nobody reads: the program runs for the first time
    step                 with marks

All of them give the state that they always give, to the bit. A resumed run has fewer of them before.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxpipe.config import Config
from jaxpipe.lowering import TickTable
from jaxpipe.lowering.replay import KINDS
from jaxpipe.lowering.table import IDLE, NONE
from jaxpipe.pipeline.tick_clock import MARKS, NANOSECONDS, to_nanoseconds
from jaxpipe.planning.tick_file import ENDS, Marks, TickTrace
from jaxpipe.schedules import Action, Schedule
from jaxpipe.training.plan import Plan
from jaxpipe.training.slotted_step import SlottedStep
from jaxpipe.training.state import TrainState
from jaxpipe.training.step import StepMetrics

STEPS_BEFORE = 3

assert Marks._fields == MARKS


@dataclass
class TickTracing:
    """What the loop needs for it.

    timed_step: compiled; the training step with marks.
    keep: gets the trace.
    describe: ``trace_of``, given what is known before the step runs.
    plain_seconds, num_timed: what was seen so far.
    """

    step: int
    timed_step: SlottedStep
    describe: Callable[..., TickTrace]
    keep: Callable[[TickTrace], None]
    plain_seconds: list[float] = field(default_factory=list)
    num_timed: int = 0

    def watches(self, step: int) -> bool:
        """Whether this step is one of those above."""
        return self.step - STEPS_BEFORE <= step <= self.step


def run_watched(
    tracing: TickTracing,
    step: int,
    plain_step: SlottedStep,
    *arguments: Any,
) -> tuple[TrainState, StepMetrics]:
    """A step that ``tracing`` watches; the devices must have nothing else to do."""
    if step < tracing.step - 1:
        plain_step.allocate()
        began = time.monotonic_ns()
        state, metrics = jax.block_until_ready(plain_step(*arguments))
        tracing.plain_seconds.append((time.monotonic_ns() - began) / NANOSECONDS)
        return state, metrics
    plain_step.release()
    tracing.timed_step.allocate()
    began = time.monotonic_ns()
    state, (metrics, stamps) = jax.block_until_ready(tracing.timed_step(*arguments))
    ended = time.monotonic_ns()
    tracing.timed_step.release()  # whatever follows, an evaluation or a save, may want the memory
    if step == tracing.step:
        trace = tracing.describe(
            stamps=to_nanoseconds(np.asarray(stamps)),
            began=began,
            ended=ended,
            plain_seconds=tuple(tracing.plain_seconds),
            is_warm=tracing.num_timed > 0,
        )
        tracing.keep(trace)
    tracing.num_timed += 1
    return state, metrics


def describer(config: Config, plan: Plan, mesh: Mesh, *, step: int) -> Callable[..., TickTrace]:
    """What makes a trace of a step of this run."""
    table = plan.program.table
    firsts = mesh.devices.reshape(mesh.devices.shape[0], table.placement.num_ranks, -1)[0, :, 0]
    processes = tuple(int(device.process_index) for device in firsts)
    return partial(
        trace_of,
        table,
        step=step,
        processes=processes,
        run=_facts(config, plan, mesh),
        specialised=plan.program.settings.specialised,
    )


def trace_of(
    table: TickTable,
    *,
    step: int,
    stamps: np.ndarray,
    began: int,
    ended: int,
    processes: tuple[int, ...],
    run: Mapping[str, Any],
    plain_seconds: tuple[float, ...] = (),
    is_warm: bool = True,
    specialised: bool = False,
) -> TickTrace:
    """The trace of a step that ran this table; ``stamps`` are nanoseconds ``[ticks, ranks, marks]``."""
    actions, ends = actions_of(table), ends_of(table)
    orders = tuple(
        tuple(action for row in actions if (action := row[rank]) is not None)
        for rank in range(table.placement.num_ranks)
    )
    stamps, error = on_one_clock(stamps, processes, [bool(row) for row in ends])
    own = stamps[:, [process == processes[0] for process in processes]]
    seconds = (stamps - stamps.min()) / NANOSECONDS
    return TickTrace(
        step=step,
        schedule=Schedule(table.name, table.placement, table.num_microbatches, orders),
        transfer_ticks=table.transfer_ticks,
        specialised=specialised,
        actions=actions,
        ends=ends,
        marks=tuple(tuple(Marks(*map(float, marks)) for marks in row) for row in seconds),
        processes=processes,
        before=max(int(own.min()) - began, 0) / NANOSECONDS,
        after=max(ended - int(own.max()), 0) / NANOSECONDS,
        step_seconds=(ended - began) / NANOSECONDS,
        plain_seconds=plain_seconds,
        is_warm=is_warm,
        run=dict(run) | {"clocks_differ_by_at_most": error / NANOSECONDS},
    )


def actions_of(table: TickTable) -> tuple[tuple[Action | None, ...], ...]:
    """``[tick][rank]``, as the table has them."""
    placement, columns = table.placement, table.ranks

    def action(tick: int, rank: int) -> Action | None:
        kind, pipe, chunk, microbatch = (int(column[tick, rank]) for column in columns[:4])
        if kind == IDLE:
            return None
        return Action(KINDS[kind], placement.stage(rank, chunk, pipe), microbatch, pipe)

    ranks = range(placement.num_ranks)
    return tuple(tuple(action(tick, rank) for rank in ranks) for tick in range(table.num_ticks))


def ends_of(table: TickTable) -> tuple[tuple[str, ...], ...]:
    """What all ranks do together in each tick, once for each pipe that does."""
    return tuple(
        tuple(
            name
            for name in ENDS
            for microbatch in getattr(table.ends, name)[tick].tolist()
            if microbatch != NONE
        )
        for tick in range(table.num_ticks)
    )


def on_one_clock(
    stamps: np.ndarray, processes: Sequence[int], has_ends: Sequence[bool]
) -> tuple[np.ndarray, int]:
    """Nanoseconds ``[ticks, ranks, marks]`` by the clock of the first rank's process, and by how much the
    others may be off.

    Hosts have clocks of their own, that tell the time since they were started. What all ranks do together at
    the ends of the pipe ties them: none is done before the last has begun. Where that leaves it open whether
    two clocks differ, as on one host, they do not.
    """
    together = stamps[np.asarray(has_ends)]
    start, end = together[..., 0], together[..., 1]
    aligned, error = stamps.copy(), 0
    first = np.asarray(processes) == processes[0]
    for process in set(processes) - {processes[0]}:
        ranks = np.asarray(processes) == process
        least = int((start[:, first].max(axis=1) - end[:, ranks].min(axis=1)).max())
        most = int((end[:, first].min(axis=1) - start[:, ranks].max(axis=1)).min())
        if not least <= 0 <= most:
            aligned[:, ranks] += (least + most) // 2
            error = max(error, (most - least + 1) // 2)
    return aligned, error


def _facts(config: Config, plan: Plan, mesh: Mesh) -> dict[str, Any]:
    """What ran and on what."""
    device = mesh.devices.flat[0]
    microbatch = config.train.global_batch_size // (config.pipeline.num_microbatches * config.mesh.dp)
    return {
        "model": asdict(config.model),
        "mesh": {axis: int(size) for axis, size in mesh.shape.items()},
        "layers_per_stage": list(plan.program.layout.layers_per_stage),
        "fuse_backward": config.pipeline.fuse_backward,
        "remat": config.pipeline.remat,
        "compute_dtype": config.train.compute_dtype,
        "sequence_length": config.data.sequence_length,
        "microbatch_tokens": microbatch * config.data.sequence_length,
        "platform": device.platform,
        "device_kind": device.device_kind,
        "num_processes": jax.process_count(),
    }
