"""Write a trace that https://ui.perfetto.dev and chrome://tracing open; a cost of 1 is a second."""

import argparse
import json

from jaxpipe.cli.faults import refuse_if_any
from jaxpipe.cli.output import add_output_arguments, write
from jaxpipe.cli.show import read_timed
from jaxpipe.cli.sizes import add_size_arguments, help_on_schedule
from jaxpipe.cli.timing import add_timing_arguments
from jaxpipe.pictures import chrome_trace, find_trace_faults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A schedule, its sizes and its costs, and a file."""
    parser.add_argument("schedule", help=help_on_schedule())
    add_size_arguments(parser)
    add_timing_arguments(parser, costs_are="of a stage (default 1), or one for each stage, as in F=1,2,1,1")
    add_output_arguments(parser, ())


def run(arguments: argparse.Namespace) -> None:
    """Write it; ``RefusedError`` with all that is wrong."""
    traced = read_timed(arguments, ())
    refuse_if_any(find_trace_faults(traced))
    write(json.dumps(chrome_trace(traced), separators=(",", ":")) + "\n", arguments.output)
