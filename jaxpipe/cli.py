"""The command ``jaxpipe``: look at schedules without a device.

    jaxpipe schedule list
    jaxpipe schedule show zb_h1 --ranks 4 --microbatches 8 --cost F=1.15 --cost B=1.4 --format json

It answers within a second, since nothing here loads JAX. All faults of a request are reported at
once, with exit code 2.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from jaxpipe.schedules import (
    GENERATORS,
    Cause,
    Costs,
    Kind,
    Schedule,
    Simulation,
    as_dict,
    build,
    find_faults,
    fuse_backward,
    simulate,
    split_backward,
    time_grid,
)
from jaxpipe.schedules.simulate import find_simulation_faults

Number = TypeVar("Number", int, float)

FORMATS = ("text", "json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 2 for a request that cannot be answered."""
    arguments = _parser().parse_args(argv)
    try:
        code = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads, such as head, has seen enough; Python would flush once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    """Values stay texts here: ``_read_request`` reads them, and reports all that are wrong together."""
    parser = argparse.ArgumentParser(
        prog="jaxpipe", description="Pipeline-parallel pre-training in JAX.", allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    schedule = commands.add_parser("schedule", help="list and show pipeline schedules", allow_abbrev=False)
    actions = schedule.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser("list", help="the names of the schedules", allow_abbrev=False).set_defaults(run=_list)
    show = actions.add_parser(
        "show", help="a schedule's grid, bubble and activations held", allow_abbrev=False
    )
    show.set_defaults(run=_show)
    show.add_argument("schedule", help=f"one of {', '.join(GENERATORS)}")
    show.add_argument("--ranks", metavar="P", help="number of ranks")
    show.add_argument("--microbatches", metavar="M", help="number of microbatches in a step")
    show.add_argument(
        "--chunks", metavar="V", help="stages per rank (default: as many as the schedule needs)"
    )
    show.add_argument(
        "--cost", metavar="KIND=SECONDS", action="append", default=[], help="of F, B or W (default 1 each)"
    )
    show.add_argument("--transfer", metavar="SECONDS", default="0", help="of one message (default 0)")
    show.add_argument(
        "--sync",
        default="async",
        help="async (default): every message its own; neighbor: the lowered program, BW split over two ticks",
    )
    show.add_argument("--transfer-ticks", metavar="1|2", help="only with --sync neighbor (default 1)")
    show.add_argument(
        "--fuse-backward",
        action="store_true",
        help="run B and W as one action where W follows B; of gpipe and 1f1b, --sync async always does",
    )
    show.add_argument("--format", default="text", help="text (default) or json")
    return parser


def _list(arguments: argparse.Namespace) -> int:
    for name, generator in GENERATORS.items():
        print(f"{name:15} {generator.summary}")
    return 0


class Request(NamedTuple):
    """What ``show`` was asked for, read and checked."""

    schedule: Schedule
    costs: Costs
    transfer: float
    transfer_ticks: int


def _show(arguments: argparse.Namespace) -> int:
    request = _read_request(arguments)
    if isinstance(request, list):
        print("\n".join(f"jaxpipe schedule show: {fault}" for fault in request), file=sys.stderr)
        return 2
    simulation = simulate(
        request.schedule,
        costs=request.costs,
        transfer=request.transfer,
        sync=arguments.sync,
        transfer_ticks=request.transfer_ticks,
    )
    if arguments.format == "json":
        print(json.dumps(as_dict(request.schedule, simulation)))
    else:
        width = shutil.get_terminal_size().columns
        print(time_grid(request.schedule, simulation, width=width))
        print("\n".join(["", *_figures(simulation)]))
    return 0


def _read_request(arguments: argparse.Namespace) -> Request | list[str]:
    """The request, or all that is wrong with it."""
    faults: list[str] = []
    num_ranks = _number(arguments.ranks, int, option="--ranks", faults=faults, fallback=1)
    num_microbatches = _number(
        arguments.microbatches, int, option="--microbatches", faults=faults, fallback=1
    )
    num_chunks = None
    if arguments.chunks is not None:
        num_chunks = _number(arguments.chunks, int, option="--chunks", faults=faults, fallback=1)
    transfer = _number(arguments.transfer, float, option="--transfer", faults=faults, fallback=0.0)
    transfer_ticks = 1
    if arguments.transfer_ticks is not None:
        transfer_ticks = _number(
            arguments.transfer_ticks, int, option="--transfer-ticks", faults=faults, fallback=1
        )
        if arguments.sync == "async":
            faults.append("--transfer-ticks is for --sync neighbor; give that too, or leave it out")
    costs = _read_costs(arguments.cost, faults)
    sizes = {"num_ranks": num_ranks, "num_microbatches": num_microbatches, "num_chunks": num_chunks}
    faults += find_faults(arguments.schedule, **sizes)
    faults += find_simulation_faults(transfer=transfer, sync=arguments.sync)
    if transfer_ticks not in (1, 2):
        faults.append(f"transfer_ticks={transfer_ticks} must be 1 or 2")
    if arguments.format not in FORMATS:
        faults.append(f"--format {arguments.format!r} must be one of {', '.join(FORMATS)}")
    if faults:
        return faults
    schedule = build(arguments.schedule, **sizes)
    if arguments.fuse_backward:
        schedule = fuse_backward(schedule)
    elif arguments.sync == "neighbor":
        schedule = split_backward(schedule)
    return Request(schedule, costs, transfer, transfer_ticks)


def _number(
    text: str | None, read: Callable[[str], Number], *, option: str, faults: list[str], fallback: Number
) -> Number:
    """The number, or ``fallback`` and one fault more."""
    if text is None:
        faults.append(f"{option} is missing; give a number")
        return fallback
    try:
        return read(text)
    except ValueError:
        faults.append(f"{option} {text!r} must be {'a whole' if read is int else 'a'} number")
        return fallback


def _read_costs(texts: Sequence[str], faults: list[str]) -> Costs:
    costs = {}
    for text in texts:
        kind, _, number = text.partition("=")
        if kind not in (Kind.F, Kind.B, Kind.W) or not number:
            faults.append(f"--cost {text!r} must name F, B or W and a number, such as F=1.5")
        elif kind in costs:
            faults.append(f"--cost {kind} is given twice; keep one")
        else:
            costs[kind] = _number(number, float, option=f"--cost {kind}", faults=faults, fallback=1.0)
    try:
        return Costs(**costs)
    except ValueError as error:
        faults += str(error).split("; ")
        return Costs()


def _figures(simulation: Simulation) -> list[str]:
    """The numbers below the grid; of the causes only those that occur."""
    causes = [cause for cause in Cause if any(idle.cause is cause for idle in simulation.idle)]
    bubble = f"bubble {simulation.bubble:g} ({simulation.bubble_fraction:.1%} of the makespan)"
    lines = [
        f"makespan {simulation.makespan:g}, ideal {simulation.ideal:g}, {bubble}, "
        f"longest rank span {simulation.longest_rank_span:g}",
        "",
        "         " + "".join(f"{title:>11}" for title in ("work", *causes, "held to B", "held to W")),
    ]
    for rank, work in enumerate(simulation.work):
        stretches = [idle for idle in simulation.idle if idle.rank == rank]
        spent = [sum(idle.end - idle.start for idle in stretches if idle.cause is cause) for cause in causes]
        held = simulation.peak_until_backward[rank], simulation.peak_until_weight[rank]
        lines.append(f"rank {rank:<4}" + "".join(f"{value:>11.4g}" for value in (work, *spent, *held)))
    return lines
