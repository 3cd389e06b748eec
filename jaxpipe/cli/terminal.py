"""Grids and tables for the terminal: how wide it is, and whether it shows colours."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxpipe.pictures import Table, Timed
from jaxpipe.pictures.terminal import color_legend, painter
from jaxpipe.schedules.grid import columns_per_second, draw_lines, fits, grid_legend, lines_of

COLORS = ("auto", "always", "never")


@dataclass(frozen=True)
class Terminal:
    """Columns, and whether to send colours."""

    width: int
    in_color: bool


def add_color_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color",
        default=COLORS[0],
        help="auto (default: on a terminal, unless NO_COLOR is set), always, never; for the format text",
    )


def find_color_faults(arguments: argparse.Namespace) -> list[str]:
    """A choice that there is not."""
    if arguments.color in COLORS:
        return []
    return [f"--color {arguments.color!r} must be one of {', '.join(COLORS)}"]


def terminal_for(arguments: argparse.Namespace) -> Terminal:
    """Where the answer goes: 80 columns where nobody knows."""
    is_shown = (
        arguments.output is None
        and sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )
    in_color = arguments.color == "always" or (arguments.color == "auto" and is_shown)
    return Terminal(shutil.get_terminal_size().columns, in_color)


def draw_schedule(timed: Timed, terminal: Terminal) -> list[str]:
    """Its grid, then what the marks mean."""
    lines = lines_of(timed.schedule, timed.simulation, only_microbatches=terminal.in_color)
    scale = columns_per_second(lines, width=terminal.width)
    paint = painter(timed.schedule) if terminal.in_color else None
    grid = draw_lines(lines, width=terminal.width, scale=scale, paint=paint)
    return [grid, "", *_legend(timed, terminal)]


def draw_under_one_axis(compared: Sequence[Timed], terminal: Terminal) -> list[str]:
    """The grids at one scale, or a line that says that they are too wide."""
    grids = [
        lines_of(timed.schedule, timed.simulation, only_microbatches=terminal.in_color) for timed in compared
    ]
    scale = max(columns_per_second(lines, width=terminal.width) for lines in grids)
    if not all(fits(lines, width=terminal.width, scale=scale) for lines in grids):
        return [f"(grids need more than {terminal.width} columns; see --format html)"]
    drawn = []
    for timed, lines in zip(compared, grids, strict=True):
        paint = painter(timed.schedule) if terminal.in_color else None
        grid = draw_lines(lines, width=terminal.width, scale=scale, paint=paint)
        drawn += [timed.title, grid, *_legend(timed, terminal), ""]
    return drawn[:-1]


def draw_table(table: Table, *, width: int | None = None) -> Iterator[str]:
    """Names to the left, numbers to the right; the columns that no line of ``width`` holds go on below."""
    lengths = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    fitting = 1
    while fitting < len(lengths) and (width is None or sum(lengths[: fitting + 1]) + 2 * fitting <= width):
        fitting += 1
    fitting = max(fitting, 2)
    yield from _draw_columns(Table(table.header[:fitting], tuple(row[:fitting] for row in table.rows)))
    if fitting < len(lengths):
        yield ""
        left = [(cells[0], *cells[fitting:]) for cells in (table.header, *table.rows)]
        yield from draw_table(Table(left[0], tuple(left[1:])), width=width)


def _draw_columns(table: Table) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    for cells in (table.header, *table.rows):
        first, *numbers = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        first = cells[0].ljust(widths[0])
        yield "  ".join([first, *numbers])


def _legend(timed: Timed, terminal: Terminal) -> list[str]:
    of = color_legend if terminal.in_color else grid_legend
    return of(timed.schedule, timed.simulation)
