"""Search for the best order, given what actions and messages cost and what a rank may hold.

It is never slower than the best named schedule that fits, of at most --chunks chunks (2 if not given) and one
pipe (--two-pipes: or two), and is told with what no order of so many chunks and pipes can beat, stages looped
or, two a rank, in a V. Others may: a named schedule with more chunks, or with two pipes.

Costs are of all layers of a rank, which it may cut into chunks; or one a stage, of stages as they are.
Memory is in activations of one microbatch in all layers of a rank, of which 1f1b holds as many as there are
ranks; or in any unit, such as bytes, if --activation says how large one is. --format csv writes what train.py
can run. --recompute looks for an order with R; what R makes again is not counted as memory.
"""

import argparse
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from jaxpipe.cli.faults import RefusedError, refuse_if_any
from jaxpipe.cli.output import add_output_arguments, find_output_faults, write
from jaxpipe.cli.show import show_text
from jaxpipe.cli.sizes import add_size_arguments, read_number, read_sizes
from jaxpipe.cli.terminal import add_color_argument, find_color_faults
from jaxpipe.cli.timing import add_timing_arguments, costs_to_search, read_timing
from jaxpipe.pictures import Timed, find_picture_faults, html, svg
from jaxpipe.schedules import as_dict
from jaxpipe.schedules.auto import Found, Memory, Timing, describe, find_request_faults, find_schedule
from jaxpipe.schedules.csv_text import to_csv
from jaxpipe.schedules.generators.catalog import MOST_SEARCHED
from jaxpipe.solver import Solution, solve

FORMATS = ("text", "json", "svg", "html", "csv")

_LONGEST_EXACT = 3600.0

_SILENT_FOR = 1.0
"""Seconds after which a person is told why nothing happens."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Sizes, costs, memory, and how to show what was found."""
    add_size_arguments(parser, with_options=False)
    add_timing_arguments(
        parser, costs_are="of all layers of a rank (default 1), or one for each stage", with_program=False
    )
    parser.add_argument("--memory", metavar="LIMIT", help="most that a rank may hold (default: no limit)")
    parser.add_argument("--activation", metavar="SIZE", help="of one microbatch from F to B (default 1)")
    parser.add_argument("--until-weight", metavar="SIZE", help="from B to W (default: as --activation)")
    parser.add_argument("--weights", metavar="SIZE", help="of a rank and its gradients (default 0)")
    parser.add_argument("--two-pipes", action="store_true", help="chimera and dualpipe too: weights twice")
    parser.add_argument(
        "--exact",
        metavar="SECONDS",
        help="let a solver say for so long how far that is from the best (small cases; pip install "
        "'jaxpipe[solver]')",
    )
    add_output_arguments(parser, FORMATS)
    add_color_argument(parser)


def run(arguments: argparse.Namespace) -> None:
    """Search and show; ``RefusedError`` with all that is wrong."""
    faults: list[str] = []
    request = _read_request(arguments, faults)
    seconds = _read_exact(arguments, faults)
    faults += find_output_faults(arguments, FORMATS) + find_color_faults(arguments)
    refuse_if_any(faults)
    refuse_if_any(find_request_faults(**request))
    with _told_after(_SILENT_FOR, "searching, which can take a minute"):
        found = find_schedule(**request, two_pipes=arguments.two_pipes, recompute=arguments.recompute)
    said = describe(found)
    if seconds is not None:
        said += _solve(found, request, seconds)
    num_chunks = found.schedule.placement.num_chunks
    write(_draw(found, said, arguments, stages_per_unit=num_chunks), arguments.output)


@contextmanager
def _told_after(seconds: float, words: str) -> Iterator[None]:
    """Tell a person at a terminal what takes so long, if it does."""
    timer = threading.Timer(seconds, lambda: print(words, file=sys.stderr, flush=True))
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _read_request(arguments: argparse.Namespace, faults: list[str]) -> dict:
    """The arguments of ``find_request_faults``, and of ``find_schedule``."""
    sizes, timing = read_sizes(arguments, faults), read_timing(arguments, faults)
    for option, value in (("--ranks", sizes.num_ranks), ("--microbatches", sizes.num_microbatches)):
        if value is None:
            faults.append(f"{option} is missing; give a number")
    if timing.fuses_backward and timing.sync == "async":
        faults.append("--fuse-backward is for --sync neighbor here; give that too, or leave it out")
    costs = timing.costs
    if sizes.num_chunks and any(isinstance(value, tuple) for value in (costs.F, costs.B, costs.W, costs.R)):
        faults.append("--chunks is settled by costs of each stage; leave one of them out")
    most = 2 if sizes.num_chunks is None else sizes.num_chunks
    if not 1 <= most <= MOST_SEARCHED:
        faults.append(f"--chunks {most} must be at least 1 and at most {MOST_SEARCHED}")
    return {
        "num_ranks": sizes.num_ranks or 1,
        "num_microbatches": sizes.num_microbatches or 1,
        "costs": costs_to_search(timing, sizes.num_ranks or 1, faults),
        "timing": Timing(timing.transfer, timing.sync, timing.transfer_ticks, timing.fuses_backward),
        "memory": _read_memory(arguments, faults),
        "chunks": range(1, min(most, MOST_SEARCHED) + 1),
    }


def _read_memory(arguments: argparse.Namespace, faults: list[str]) -> Memory | None:
    given = {
        name: read_number(text, float, option=f"--{name.replace('_', '-')}", faults=faults, fallback=1.0)
        for name in ("activation", "until_weight", "weights")
        if (text := getattr(arguments, name)) is not None
    }
    if arguments.memory is None:
        if given:
            faults.append("--memory is missing, of which the other sizes are parts; give it")
        return None
    limit = read_number(arguments.memory, float, option="--memory", faults=faults, fallback=1.0)
    try:
        return Memory(limit, **given)
    except ValueError as error:
        faults += str(error).split("; ")
        return None


def _read_exact(arguments: argparse.Namespace, faults: list[str]) -> float | None:
    if arguments.exact is None:
        return None
    seconds = read_number(arguments.exact, float, option="--exact", faults=faults, fallback=1.0)
    if not 0 < seconds <= _LONGEST_EXACT:
        faults.append(f"--exact {arguments.exact} must be more than 0 and at most {_LONGEST_EXACT:g} seconds")
    if arguments.sync != "async":
        faults.append("--exact is for --sync async; leave one of them out")
    if arguments.two_pipes:
        faults.append("--exact knows one pipe, so it cannot judge --two-pipes; leave one of them out")
    if arguments.recompute:
        faults.append("--exact knows no R, so it cannot judge --recompute; leave one of them out")
    return seconds


def _solve(found: Found, request: dict, seconds: float) -> list[str]:
    """How far what was found is from the best order on the same placement."""
    if sys.stderr.isatty():
        print(f"solving, for {seconds:g} s at most", file=sys.stderr)
    try:
        solution = solve(
            found.schedule.placement,
            request["num_microbatches"],
            costs=request["costs"],
            transfer=request["timing"].transfer,
            memory=request["memory"],
            hint=found.schedule,
            time_limit=seconds,
        )
    except (ImportError, ValueError) as error:
        raise RefusedError([f"--exact: {error}"]) from error
    return ["exact solver, on this placement: " + _solved(found, solution)]


def _solved(found: Found, solution: Solution) -> str:
    """What the solver adds to what is known of other placements too."""
    least = max(solution.bound, found.bound.seconds)
    above = max(0.0, found.simulation.makespan / least - 1)
    if solution.schedule is None and solution.bound <= found.bound.seconds:
        return f"{solution.status}, it had no time to say anything; give it more seconds"
    makespan = f", makespan {solution.makespan:g}" if solution.schedule else ", no order in that time"
    return (
        f"{solution.status}{makespan}, none below {least:g}: what was found is at most {above:.1%} above "
        "the best"
    )


def _draw(found: Found, said: list[str], arguments: argparse.Namespace, *, stages_per_unit: int) -> str:
    shown = Timed("auto", found.schedule, found.simulation, stages_per_unit)
    if arguments.format == "csv":
        return to_csv(found.schedule)
    if arguments.format == "json":
        figures = as_dict(found.schedule, found.simulation)
        figures |= {"lower_bound": found.bound.seconds, "lower_bound_reason": found.bound.reason}
        figures |= {"best_named": found.named, "best_named_makespan": found.named_makespan}
        return (
            json.dumps(
                figures | {"memory_in_units_of_the_limit": found.memory, "orders_timed": found.num_tried}
            )
            + "\n"
        )
    if arguments.format == "text":
        return "\n".join([*said, "", show_text(shown, arguments)])
    refuse_if_any(find_picture_faults([shown]))
    return {"svg": svg, "html": html}[arguments.format]([shown])
