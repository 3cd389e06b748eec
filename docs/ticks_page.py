"""Draws the pictures of docs/how-a-schedule-becomes-ticks.md (``make docs``); a test tells if they are stale.

The same for a schedule of one's own, by its name or from a CSV file:

python docs/ticks_page.py pictures --schedule mine.csv --ranks 4 --microbatches 8
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from tick_pictures.frame import HEAD, WIDTH, draw_legend, page
from tick_pictures.grid import draw_grid
from tick_pictures.one_tick import draw_tick
from tick_pictures.slots import draw_slots

from jaxpipe.lowering import lower, replay
from jaxpipe.pictures import Timed
from jaxpipe.pictures.axis import Axis
from jaxpipe.pictures.legend import legend, shades_of
from jaxpipe.pictures.sheet import Sheet, draw_left, draw_right, lay_out, width_of_heads
from jaxpipe.pictures.svg import EDGE
from jaxpipe.schedules import Schedule, build, simulate
from jaxpipe.schedules.schedule_file import is_file, read_schedule_file

FOLDER = Path(__file__).parent / "ticks"

NUM_RANKS, NUM_MICROBATCHES = 4, 8
MICROBATCH = 4
"""The one whose way is drawn: all ranks are busy then."""
TICK = 8
"""Of zb_h1: F, B and W at once, the head, the embedding, and messages both ways."""


def pictures() -> Mapping[str, str]:
    """Of the page: the text of each file, by its name."""
    first, second = (
        build(name, num_ranks=NUM_RANKS, num_microbatches=NUM_MICROBATCHES) for name in ("1f1b", "zb_h1")
    )
    return {
        "order.svg": draw_order([first, second]),
        "ticks-1f1b.svg": draw_grid(lower(first), MICROBATCH),
        "ticks-zb_h1.svg": draw_grid(lower(second), MICROBATCH),
        "slots-1f1b-rank-0.svg": draw_slots(lower(first), 0),
        "slots-zb_h1-rank-3.svg": draw_slots(lower(second), 3),
        "tick-zb_h1.svg": draw_tick(lower(second), TICK),
    }


def pictures_of(schedule: Schedule) -> Mapping[str, str]:
    """Of a schedule with one pipe; ``ValueError`` if it has two."""
    if schedule.placement.num_pipes > 1:
        raise ValueError(f"{schedule.name} has {schedule.placement.num_pipes} pipes; only one can be drawn")
    table = lower(schedule)
    replay(table, schedule)
    ranks = range(schedule.num_ranks)
    return {
        "order.svg": draw_order([schedule]),
        "ticks.svg": draw_grid(table, min(MICROBATCH, schedule.num_microbatches - 1)),
        **{f"slots-rank-{rank}.svg": draw_slots(table, rank) for rank in ranks},
    }


def draw_order(schedules: Sequence[Schedule]) -> str:
    """Schedules under one axis of time, where F, B and W of a stage cost 1 each."""
    compared = [Timed(schedule.name, schedule, simulate(schedule)) for schedule in schedules]
    parts, below = draw_legend(legend(compared), HEAD)
    left = EDGE + width_of_heads(compared)
    sheet = lay_out(compared, left=left, top=below + 16)
    axis = Axis(left, max(WIDTH - EDGE - left, 0), sheet.axis.end)
    sheet = Sheet(axis, sheet.layouts, sheet.top, sheet.bottom)
    parts += [*draw_left(sheet, left=EDGE), *draw_right(sheet)]
    sizes = f"{schedules[0].num_ranks} ranks, {schedules[0].num_microbatches} microbatches"
    title = f"{' and '.join(schedule.name for schedule in schedules)}, {sizes}, F = B = W = 1"
    return page(title, parts, shades=sorted(shades_of(compared)), size=(WIDTH, sheet.bottom + EDGE))


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw how a schedule becomes ticks.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--schedule", help="a name, or a CSV file; without it the pictures of the page")
    parser.add_argument("--ranks", type=int, default=NUM_RANKS)
    parser.add_argument("--microbatches", type=int, default=NUM_MICROBATCHES)
    arguments = parser.parse_args()
    try:
        drawn = pictures_of(_read(arguments)) if arguments.schedule else pictures()
    except ValueError as error:
        parser.error(str(error))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, content in drawn.items():
        (arguments.folder / name).write_text(content, encoding="utf-8")


def _read(arguments: argparse.Namespace) -> Schedule:
    if is_file(arguments.schedule):
        return read_schedule_file(arguments.schedule)
    return build(arguments.schedule, num_ranks=arguments.ranks, num_microbatches=arguments.microbatches)


if __name__ == "__main__":
    main()
