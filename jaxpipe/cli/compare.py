"""Lay several schedules under one time axis, with a table; all of them run the same model.

A cost is that of one rank's layers, all chunks together: of a schedule with v chunks, each stage costs a
v-th (with --costs, what was measured of its layers), and activations held are counted in units of all stages
of a rank.
"""

import argparse

from jaxpipe.cli.faults import refuse_if_any
from jaxpipe.cli.output import add_output_arguments, find_output_faults, write
from jaxpipe.cli.sizes import (
    Sizes,
    add_size_arguments,
    help_on_schedule,
    is_file,
    read_number,
    read_schedule,
    read_sizes,
)
from jaxpipe.cli.terminal import (
    add_color_argument,
    draw_table,
    draw_under_one_axis,
    find_color_faults,
    terminal_for,
)
from jaxpipe.cli.timing import (
    Timing,
    add_timing_arguments,
    costs_per_rank,
    costs_to_search,
    find_ignored_costs,
    read_timing,
    timed,
)
from jaxpipe.pictures import Timed, comparison_table, find_picture_faults, html, svg
from jaxpipe.schedules import Costs, Schedule, find_faults
from jaxpipe.schedules.auto import Memory, find_schedule
from jaxpipe.schedules.auto import Timing as SearchTiming
from jaxpipe.schedules.generators.catalog import NAMED, SEARCHED

FORMATS = ("text", "svg", "html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Schedules, the sizes and costs that they share, and how to show them."""
    parser.add_argument(
        "schedules",
        metavar="SCHEDULE[:CHUNKS]",
        nargs="+",
        help=f"such as interleaved:3; {help_on_schedule()}",
    )
    add_size_arguments(parser, with_chunks=False)
    add_timing_arguments(
        parser,
        costs_are="of one rank's layers, all chunks together, so that a stage of v chunks costs a v-th "
        "(default 1); or one for each of P equal parts of the model, as in F=1,2,1,1",
    )
    add_output_arguments(parser, FORMATS)
    add_color_argument(parser)


def run(arguments: argparse.Namespace) -> None:
    """Compare them; ``RefusedError`` with all that is wrong."""
    compared = _read(arguments)
    if arguments.format == "text":
        grids = draw_under_one_axis(compared, terminal_for(arguments))
        text = "\n".join([*draw_table(comparison_table(compared)), "", *grids]) + "\n"
    else:
        refuse_if_any(find_picture_faults(compared))
        text = {"svg": svg, "html": html}[arguments.format](compared)
    write(text, arguments.output)


def _read(arguments: argparse.Namespace) -> list[Timed]:
    faults: list[str] = []
    sizes, timing = read_sizes(arguments, faults), read_timing(arguments, faults)
    faults += _find_options_of_none(arguments.schedules, sizes)
    ready: list[tuple[str, Schedule, Costs]] = []
    for text in arguments.schedules:
        schedule = _read_one(text, sizes, timing, faults)
        if schedule:
            title = schedule.name if is_file(text) else text
            ready.append((title, schedule, costs_per_rank(schedule, timing, faults)))
    faults += find_output_faults(arguments, FORMATS) + find_color_faults(arguments)
    refuse_if_any(faults)
    return [
        timed(title, schedule, timing, costs=costs, stages_per_unit=schedule.placement.num_chunks)
        for title, schedule, costs in ready
    ]


def _read_one(text: str, sizes: Sizes, timing: Timing, faults: list[str]) -> Schedule | None:
    """A file, or a name with or without chunks, and with those options that it has; auto for these costs."""
    if is_file(text):
        return read_schedule(text, Sizes(sizes.num_ranks, sizes.num_microbatches, None, {}), faults)
    name, colon, chunks = text.partition(":")
    num_chunks = None
    if colon:
        num_chunks = read_number(chunks, int, option=f"the chunks of {text!r},", faults=faults, fallback=1)
    known = NAMED[name].options if name in NAMED else {}
    options = {option: value for option, value in sizes.options.items() if option in known}
    own = Sizes(sizes.num_ranks, sizes.num_microbatches, num_chunks, options)
    if name in SEARCHED and find_ignored_costs([name], timing):
        return _search(own, timing, faults)
    return read_schedule(name, own, faults)


def _search(sizes: Sizes, timing: Timing, faults: list[str]) -> Schedule | None:
    """auto, made for costs that are single numbers."""
    num_ranks, num_microbatches = sizes.num_ranks or 1, sizes.num_microbatches or 1
    given = {"num_ranks": num_ranks, "num_microbatches": num_microbatches, **sizes.options}
    wrong = find_faults("auto", num_chunks=sizes.num_chunks, **given)
    costs = costs_to_search(timing, num_ranks, wrong)
    if any(isinstance(value, tuple) for value in (costs.F, costs.B, costs.W)):
        wrong.append("auto cannot be compared at costs of each part of the model; give single numbers")
    if sizes.num_ranks is None or sizes.num_microbatches is None or wrong:
        faults += wrong
        return None
    limit = sizes.options.get("memory_limit")
    try:
        return find_schedule(
            num_ranks,
            num_microbatches,
            costs=costs,
            timing=SearchTiming(timing.transfer, timing.sync, timing.transfer_ticks, timing.fuses_backward),
            memory=None if limit is None else Memory(limit),
            chunks=range(1, (sizes.num_chunks or SEARCHED["auto"].default_chunks) + 1),
        ).schedule
    except ValueError as error:
        faults.append(str(error))
        return None


def _find_options_of_none(texts: list[str], sizes: Sizes) -> list[str]:
    names = {text.partition(":")[0] for text in texts}
    known = {option for name in names & NAMED.keys() for option in NAMED[name].options}
    return [
        f"option {option!r} does not exist for any of these schedules; leave it out"
        for option in sizes.options
        if option not in known
    ]
