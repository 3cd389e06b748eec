"""What actions and messages cost, and how ranks wait for each other."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from jaxpipe.cli.measured import (
    Measured,
    add_measured_arguments,
    costs_of_part,
    read_measured,
)
from jaxpipe.cli.sizes import read_number
from jaxpipe.pictures import Timed
from jaxpipe.planning.schedule_costs import message_seconds
from jaxpipe.schedules import Costs, Schedule, fuse_backward, simulate, split_backward, with_recompute
from jaxpipe.schedules.costs import ENDS, UNIT_COSTS, find_cost_faults
from jaxpipe.schedules.recompute import find_recompute_faults as why_no_recompute
from jaxpipe.schedules.simulate import find_simulation_faults

_KINDS = ("F", "B", "W", "R")
_NAMES = tuple(field.name for field in fields(Costs))


@dataclass(frozen=True)
class Timing:
    """Read and checked, but for how many costs there must be.

    ``costs`` are those that were given one by one; where there is a file, ``measured`` has them.
    """

    costs: Costs
    measured: Measured | None
    transfer: float
    sync: str
    transfer_ticks: int
    specialised: bool
    fuses_backward: bool
    recomputes: bool


def add_timing_arguments(
    parser: argparse.ArgumentParser, *, costs_are: str, with_program: bool = True
) -> None:
    """Costs, messages and the model of waiting; ``costs_are`` says of what.

    with_program: whether the lowered program may be one of segments.
    """
    parser.add_argument(
        "--cost",
        metavar="KIND=SECONDS",
        action="append",
        default=[],
        help=f"of F, B, W or R, {costs_are}; or of head or embedding, of the whole model (default 0)",
    )
    parser.add_argument("--transfer", metavar="SECONDS", help="of one message (default 0)")
    add_measured_arguments(parser)
    parser.add_argument(
        "--sync",
        default="async",
        help="async (default): every message its own; neighbor: the lowered program, BW split over two ticks",
    )
    parser.add_argument("--transfer-ticks", metavar="1|2", help="only with --sync neighbor (default 1)")
    parser.set_defaults(program=None)
    if with_program:
        parser.add_argument(
            "--program",
            metavar="scan|segments",
            help="only with --sync neighbor: neighbours wait in every tick (scan, the default), or only in "
            "those in which they exchange a message (segments)",
        )
    parser.add_argument(
        "--fuse-backward",
        action="store_true",
        help="run B and W as one action where W follows B; of gpipe and 1f1b, --sync async always does",
    )
    add_recompute_argument(parser)


def add_recompute_argument(parser: argparse.ArgumentParser, *, placed: str = "where a rank waits") -> None:
    """Whether a schedule gets R; ``placed`` says where."""
    parser.add_argument(
        "--recompute",
        action="store_true",
        help=f"recomputation (remat full) as an action of its own, R, {placed}; without it, part of B",
    )


def find_recompute_faults(schedule: Schedule, arguments: argparse.Namespace) -> list[str]:
    """A schedule that has R already."""
    return [f"--recompute: {fault}" for fault in why_no_recompute(schedule)] if arguments.recompute else []


def read_timing(arguments: argparse.Namespace, faults: list[str]) -> Timing:
    """What cannot be read becomes the default, and a fault more."""
    measured, transfer = read_measured(arguments, faults), 0.0
    if arguments.transfer is not None:
        transfer = read_number(arguments.transfer, float, option="--transfer", faults=faults, fallback=0.0)
    elif measured is not None:
        transfer = message_seconds(measured.costs, sync=arguments.sync)
    transfer_ticks = 1
    if arguments.transfer_ticks is not None:
        transfer_ticks = read_number(
            arguments.transfer_ticks, int, option="--transfer-ticks", faults=faults, fallback=1
        )
        if arguments.sync == "async":
            faults.append("--transfer-ticks is for --sync neighbor; give that too, or leave it out")
    if arguments.program not in (None, "scan", "segments"):
        faults.append(f"--program {arguments.program!r} must be scan or segments")
    elif arguments.program is not None and arguments.sync == "async":
        faults.append("--program is for --sync neighbor; give that too, or leave it out")
    if transfer_ticks not in (1, 2):
        faults.append(f"transfer_ticks={transfer_ticks} must be 1 or 2")
    costs = _read_costs(arguments.cost, faults)
    faults += find_simulation_faults(transfer=transfer, sync=arguments.sync)
    return Timing(
        costs,
        measured,
        transfer,
        arguments.sync,
        transfer_ticks,
        arguments.program == "segments",
        arguments.fuse_backward,
        arguments.recompute,
    )


def find_ignored_costs(names: Sequence[str], timing: Timing) -> list[str]:
    """``auto`` by name is searched for equal costs and free messages; with others it would be another."""
    if "auto" not in names or (
        timing.costs == UNIT_COSTS
        and timing.measured is None
        and timing.transfer == 0
        and timing.sync == "async"
    ):
        return []
    return ["auto by name is made for F = B = W = 1 and free messages; for others: jaxpipe schedule auto"]


def costs_per_stage(schedule: Schedule, timing: Timing, faults: list[str]) -> Costs:
    """As given: one number, or one for each stage; or as measured, of the layers of a stage."""
    if timing.measured is not None:
        recomputes = timing.recomputes or schedule.recomputes
        return costs_of_part(timing.measured, schedule.placement.num_stages, faults, recomputes=recomputes)
    faults += find_cost_faults(timing.costs, schedule.placement.num_stages)
    return timing.costs


def costs_per_rank(schedule: Schedule, timing: Timing, faults: list[str]) -> Costs:
    """Given for a rank's layers: one number, or one for each of p equal parts of the model.

    With v chunks a stage has a v-th of it, so that schedules of different chunks run the same model. What was
    measured is of the layers that a stage has.
    """
    if timing.measured is not None:
        return costs_per_stage(schedule, timing, faults)
    costs = timing.costs
    num_ranks, num_chunks = schedule.num_ranks, schedule.placement.num_chunks
    divided: dict[str, float | tuple[float, ...]] = {}
    for kind in _KINDS:
        value = getattr(costs, kind)
        if isinstance(value, tuple):
            if len(value) != num_ranks:
                faults.append(
                    f"{len(value)} costs {kind} for {num_ranks} ranks; give one for each, or a single number"
                )
            divided[kind] = tuple(part / num_chunks for part in value for _ in range(num_chunks))
        else:
            divided[kind] = value / num_chunks
    try:
        return replace(costs, **divided)  # type: ignore[arg-type]
    except ValueError as error:
        faults += (f"{fault} after its division by {num_chunks} chunks" for fault in str(error).split("; "))
        return costs


def costs_to_search(timing: Timing, num_ranks: int, faults: list[str]) -> Costs:
    """Of all layers of a rank, which ``auto`` cuts into chunks."""
    if timing.measured is not None:
        return costs_of_part(timing.measured, num_ranks, faults, recomputes=timing.recomputes)
    return timing.costs


def timed(title: str, schedule: Schedule, timing: Timing, *, costs: Costs, stages_per_unit: int = 1) -> Timed:
    """The schedule as the model of waiting runs it, with its times."""
    if timing.fuses_backward:
        schedule = fuse_backward(schedule)
    elif timing.sync == "neighbor":
        schedule = split_backward(schedule)
    if timing.recomputes and not schedule.recomputes:
        schedule = with_recompute(
            schedule,
            costs=costs,
            transfer=timing.transfer,
            sync=timing.sync,
            transfer_ticks=timing.transfer_ticks,
        )
    simulation = simulate(
        schedule,
        costs=costs,
        transfer=timing.transfer,
        sync=timing.sync,
        transfer_ticks=timing.transfer_ticks,
        specialised=timing.specialised,
    )
    return Timed(title, schedule, simulation, stages_per_unit)


def _read_costs(texts: Sequence[str], faults: list[str]) -> Costs:
    costs: dict[str, float | tuple[float, ...]] = {}
    for text in texts:
        kind, _, value = text.partition("=")
        if kind not in _NAMES or not value:
            faults.append(
                f"--cost {text!r} must name F, B, W, R, head or embedding and a number, such as F=1.5, or "
                "one for each stage, such as F=1,2"
            )
        elif kind in costs:
            faults.append(f"--cost {kind} is given twice; keep one")
        else:
            costs[kind] = _read_cost(kind, value, faults)
    try:
        return Costs(**costs)  # type: ignore[arg-type]
    except ValueError as error:
        faults += str(error).split("; ")
        return Costs()


def _read_cost(kind: str, text: str, faults: list[str]) -> float | tuple[float, ...]:
    def read(part: str) -> float:
        return read_number(part, float, option=f"--cost {kind}", faults=faults, fallback=1.0)

    if "," not in text:
        return read(text)
    if kind in ENDS:
        faults.append(f"--cost {kind} {text!r} must be one number")
        return 0.0
    return tuple(map(read, text.split(",")))
