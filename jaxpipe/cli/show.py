"""Show a schedule: who does what when, why ranks are idle, and the activations that each rank holds."""

import argparse
import json
import textwrap

from jaxpipe.cli.faults import refuse_if_any
from jaxpipe.cli.output import add_output_arguments, find_output_faults, write
from jaxpipe.cli.sizes import add_size_arguments, help_on_schedule, read_schedule, read_sizes
from jaxpipe.cli.terminal import (
    add_color_argument,
    draw_schedule,
    draw_table,
    find_color_faults,
    terminal_for,
)
from jaxpipe.cli.timing import (
    add_timing_arguments,
    costs_per_stage,
    find_ignored_costs,
    read_timing,
    timed,
)
from jaxpipe.pictures import Timed, find_picture_faults, html, rank_table, svg
from jaxpipe.schedules import as_dict

FORMATS = ("text", "json", "svg", "html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A schedule, its sizes and its costs, and how to show it."""
    parser.add_argument("schedule", help=help_on_schedule())
    add_size_arguments(parser)
    add_timing_arguments(parser, costs_are="of a stage (default 1), or one for each stage, as in F=1,2,1,1")
    add_output_arguments(parser, FORMATS)
    add_color_argument(parser)


def run(arguments: argparse.Namespace) -> None:
    """Show it; ``RefusedError`` with all that is wrong."""
    shown = read_timed(arguments, FORMATS)
    draw = {"text": show_text, "json": _json, "svg": _svg, "html": _html}[arguments.format]
    write(draw(shown, arguments), arguments.output)


def read_timed(arguments: argparse.Namespace, formats: tuple[str, ...]) -> Timed:
    """The schedule that was asked for, with its times; ``RefusedError`` with all that is wrong."""
    faults: list[str] = []
    sizes, timing = read_sizes(arguments, faults), read_timing(arguments, faults)
    schedule = read_schedule(arguments.schedule, sizes, faults)
    faults += find_ignored_costs([arguments.schedule], timing)
    if schedule:
        costs = costs_per_stage(schedule, timing, faults)
    faults += find_output_faults(arguments, formats)
    if "color" in arguments:
        faults += find_color_faults(arguments)
    refuse_if_any(faults)
    assert schedule, "without one there is a fault"
    return timed(schedule.name, schedule, timing, costs=costs)


def show_text(shown: Timed, arguments: argparse.Namespace) -> str:
    """The grid, the figures, and a table of the ranks."""
    simulation = shown.simulation
    figures = (
        f"makespan {simulation.makespan:g}, ideal {simulation.ideal:g}, bubble {simulation.bubble:g} "
        f"({simulation.bubble_fraction:.1%} of the makespan), "
        f"longest rank span {simulation.longest_rank_span:g}"
    )
    terminal = terminal_for(arguments)
    drawn = [*draw_schedule(shown, terminal), "", *textwrap.wrap(figures, terminal.width)]
    lines = [*drawn, "", *draw_table(rank_table(shown))]
    return "\n".join(lines) + "\n"


def _json(shown: Timed, arguments: argparse.Namespace) -> str:
    return json.dumps(as_dict(shown.schedule, shown.simulation)) + "\n"


def _svg(shown: Timed, arguments: argparse.Namespace) -> str:
    refuse_if_any(find_picture_faults([shown]))
    return svg([shown])


def _html(shown: Timed, arguments: argparse.Namespace) -> str:
    refuse_if_any(find_picture_faults([shown]))
    return html([shown])
