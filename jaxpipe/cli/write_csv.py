"""Write a schedule's order as CSV, a row for each rank: in our form, or in the one that PyTorch reads."""

import argparse

from jaxpipe.cli.faults import RefusedError, refuse_if_any
from jaxpipe.cli.output import add_output_arguments, find_output_faults, write
from jaxpipe.cli.sizes import add_size_arguments, help_on_schedule, read_schedule, read_sizes
from jaxpipe.cli.timing import add_recompute_argument, find_recompute_faults
from jaxpipe.schedules import with_recompute
from jaxpipe.schedules.csv_text import FORMS, to_csv


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A schedule, its sizes, a form and a file."""
    parser.add_argument("schedule", help=help_on_schedule())
    add_size_arguments(parser)
    add_recompute_argument(parser, placed="where a rank waits at F = B = W = R = 1")
    add_output_arguments(parser, FORMS)


def run(arguments: argparse.Namespace) -> None:
    """Write it; ``RefusedError`` with all that is wrong."""
    faults: list[str] = []
    schedule = read_schedule(arguments.schedule, read_sizes(arguments, faults), faults)
    if schedule:
        faults += find_recompute_faults(schedule, arguments)
    faults += find_output_faults(arguments, FORMS)
    refuse_if_any(faults)
    assert schedule, "without one there is a fault"
    if arguments.recompute:
        schedule = with_recompute(schedule)
    try:
        text = to_csv(schedule, arguments.format)
    except ValueError as error:
        raise RefusedError([str(error)]) from error
    write(text, arguments.output)
