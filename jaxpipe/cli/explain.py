"""Say where the time of a step went: measured beside predicted, and why each rank was idle.

The step is one of a run with `--run.trace_step`, which times every tick on each rank. The prediction runs the
same order at the costs of a file that `jaxpipe profile` wrote, or else at the medians of the step itself.
`jaxpipe explain runs/first -o explained.html --trace explained.json` draws both timelines, one below the
other, for a browser and for https://ui.perfetto.dev.
"""

import argparse
import json
import re
from pathlib import Path

from jaxpipe.cli.explained_tables import (
    action_table,
    idle_table,
    long_waits_table,
    rank_table,
    sentences,
    share_table,
    step_table,
)
from jaxpipe.cli.faults import RefusedError, refuse_if_any
from jaxpipe.cli.output import find_file_faults, find_output_faults, write
from jaxpipe.cli.terminal import draw_table
from jaxpipe.errors import InputError
from jaxpipe.pictures import (
    Table,
    Timed,
    chrome_trace_of_all,
    find_picture_faults,
    find_trace_faults,
    html,
)
from jaxpipe.planning.costs_file import read_costs
from jaxpipe.planning.explanation import Explanation, explain
from jaxpipe.planning.tick_file import HOW_TO_GET_ONE, read_ticks

_FILE = re.compile(r"ticks-(\d+)\.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The step, the costs, and the files to draw to."""
    parser.add_argument(
        "ticks", metavar="RUN", help="a run's directory, of whose traced steps the last is taken; or a file"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="draw both timelines there, as HTML")
    parser.add_argument("--trace", metavar="FILE", help="write both there, as one trace for Perfetto")
    parser.add_argument(
        "--costs", metavar="FILE", help="predict at these costs (default: at the medians of the step itself)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Print the tables, and write the files; ``RefusedError`` with all that is wrong."""
    faults = find_output_faults(arguments, ())
    if arguments.trace is not None:
        faults += find_file_faults(arguments.trace, option="--trace")
        if arguments.trace == arguments.output:
            faults.append(f"-o and --trace are both {arguments.trace!r}; name two files")
    explanation = _read(arguments, faults)
    assert explanation is not None, "without one there is a fault"
    trace = explanation.trace
    compared = [
        Timed(f"predicted, at {explanation.source}", trace.schedule, explanation.predicted),
        Timed("measured", trace.schedule, explanation.measured),
    ]
    if arguments.output is not None:
        refuse_if_any(find_picture_faults(compared))
    refuse_if_any([fault for timed in compared for fault in find_trace_faults(timed)])
    tables = _tables(explanation)
    write(_as_text(explanation, tables), None)
    if arguments.output is not None:
        title = f"Step {trace.step}, {trace.schedule.name}: predicted and measured"
        write(html(compared, title=title, tables=tables), arguments.output)
    if arguments.trace is not None:
        write(
            json.dumps(chrome_trace_of_all(compared), separators=(",", ":")) + "\n",
            arguments.trace,
            option="--trace",
        )


def _read(arguments: argparse.Namespace, faults: list[str]) -> Explanation | None:
    """What the files hold; ``RefusedError`` with what is wrong with them and the other arguments."""
    costs = trace = None
    try:
        trace = read_ticks(find_ticks(arguments.ticks))
    except InputError as error:
        faults.append(str(error))
    try:
        costs = read_costs(Path(arguments.costs)) if arguments.costs is not None else None
    except InputError as error:
        faults.append(f"--costs {error}")
    refuse_if_any(faults)
    try:
        return explain(trace, costs) if trace else None
    except InputError as error:
        raise RefusedError([f"--costs {arguments.costs}: {error}"]) from error


def find_ticks(text: str) -> Path:
    """The file that is meant; ``InputError`` if there is none."""
    path = Path(text.replace("\0", ""))
    try:
        if not path.is_dir():
            return path
        steps = {int(match[1]): entry for entry in path.iterdir() if (match := _FILE.fullmatch(entry.name))}
    except OSError as error:
        raise InputError(
            f"{text[:200]!r} cannot be read: {error.strerror}; name a run's directory"
        ) from error
    if not steps:
        raise InputError(f"{text!r} holds no ticks-<step>.json; {HOW_TO_GET_ONE}")
    return steps[max(steps)]


def _tables(explanation: Explanation) -> list[tuple[str, Table]]:
    """Each with a line that says what it is of."""
    source = explanation.source
    return [
        (" ".join(sentences(explanation)), step_table(explanation)),
        (
            f"Seconds of each part, predicted at {source}, and as often as it was measured.",
            action_table(explanation),
        ),
        ("Where the time of all ranks went, as shares of it.", share_table(explanation)),
        ("Seconds of each rank.", rank_table(explanation)),
        ("Seconds that each rank was idle in the measured step, by cause.", idle_table(explanation)),
        ("The longest waits.", long_waits_table(explanation)),
    ]


def _as_text(explanation: Explanation, tables: list[tuple[str, Table]]) -> str:
    lines = [*sentences(explanation)]
    for number, (line, table) in enumerate(tables):
        lines += ["", *([line] if number else []), *draw_table(table)]
    return "\n".join(lines) + "\n"
