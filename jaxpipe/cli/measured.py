"""Costs from a file that ``jaxpipe profile`` has written, for a model of as many layers as one likes."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.cli.sizes import read_number
from jaxpipe.planning.costs_file import REMATS, MeasuredCosts, action_seconds, read_costs
from jaxpipe.schedules import Costs

_MOST_LAYERS = 2**16


@dataclass(frozen=True)
class Measured:
    """The file's costs, of ``num_layers`` that the stages share evenly."""

    costs: MeasuredCosts
    remat: str
    num_layers: int


def add_measured_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and which of its costs."""
    parser.add_argument(
        "--costs",
        metavar="FILE",
        help="seconds of all things, as `jaxpipe profile` measured them, instead of --cost and --transfer",
    )
    parser.add_argument("--layers", metavar="N", help="of the model, with --costs (default: as measured)")
    parser.add_argument("--remat", help=f"with --costs: {', '.join(REMATS)} (default full)")


def read_measured(arguments: argparse.Namespace, faults: list[str]) -> Measured | None:
    """None if there is no file, or it cannot be used, which is a fault more."""
    given = {"--layers": arguments.layers, "--remat": arguments.remat}
    if arguments.costs is None:
        faults += (
            f"{option} is for --costs; give that too, or leave it out"
            for option, value in given.items()
            if value is not None
        )
        return None
    if arguments.cost or arguments.transfer is not None:
        faults.append("--costs says what --cost and --transfer would say; leave the file or these out")
    remat = arguments.remat or REMATS[0]
    if remat not in REMATS:
        faults.append(f"--remat {remat!r} must be one of {', '.join(REMATS)}")
        remat = REMATS[0]
    num_layers = None
    if arguments.layers is not None:
        num_layers = read_number(arguments.layers, int, option="--layers", faults=faults, fallback=1)
        if not 1 <= num_layers <= _MOST_LAYERS:
            faults.append(f"--layers {num_layers} must be at least 1 and at most {_MOST_LAYERS}")
    try:
        costs = read_costs(Path(arguments.costs))
    except ValueError as error:
        faults.append(f"--costs {error}")
        return None
    num_layers = costs.model.get("num_hidden_layers") if num_layers is None else num_layers
    if not isinstance(num_layers, int):
        faults.append(
            f"--costs {arguments.costs}: does not say num_hidden_layers of its model; give --layers"
        )
        return None
    return Measured(costs, remat, num_layers)


def costs_of_part(measured: Measured, num_parts: int, faults: list[str]) -> Costs:
    """Of each of so many equal parts of the layers, a stage or all of a rank; and of the ends of the pipe."""
    if measured.num_layers < num_parts:
        faults.append(
            f"--layers {measured.num_layers} cannot fill {num_parts} stages; use at least {num_parts}, or "
            "fewer ranks or chunks"
        )
        return Costs()
    F, B, W = (
        action_seconds(measured.costs, kind, remat=measured.remat, num_layers=measured.num_layers / num_parts)
        for kind in ("F", "B", "W")
    )
    return Costs(F, B, W, head=measured.costs.head, embedding=measured.costs.embedding)


def message_seconds(measured: Measured, sync: str) -> float:
    """What stands between an action and its neighbour's next.

    The lowered program sends to both neighbours at every tick, one after the other, and a tick itself costs
    something; a message of its own costs itself alone.
    """
    if sync == "neighbor":
        return 2 * measured.costs.transfer + measured.costs.tick
    return measured.costs.transfer
