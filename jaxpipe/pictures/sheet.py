"""Where everything stands: schedules one below the other, under one time axis.

A sheet has two halves of the same height, the names of the rows and the rows, so that a page can keep the
names in sight while the rows scroll.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxpipe.pictures.axis import NARROWEST, Axis, draw_lines, draw_times, shared_axis
from jaxpipe.pictures.elements import LABEL_SIZE, TEXT_SIZE, text
from jaxpipe.pictures.text_width import shortened, text_width
from jaxpipe.pictures.timed import Timed
from jaxpipe.pictures.timeline import Layout, draw_heads, draw_rows, head_texts

TIMES, TITLE, BETWEEN = 18.0, 26.0, 14.0
"""Heights of the line of times, of a schedule's title, and of what stays free below a schedule."""
GAP = 10.0
"""Pixels between the names and the rows."""
MOST_ACTIONS = 20_000
"""A browser still scrolls through as many."""


def find_picture_faults(compared: Sequence[Timed]) -> list[str]:
    """What is too large to be drawn box by box."""
    total = sum(len(timed.simulation.start) for timed in compared)
    if total <= MOST_ACTIONS:
        return []
    remedy = "use fewer microbatches or ranks, the format text, or jaxpipe schedule trace"
    return [f"a picture of {total} actions must have at most {MOST_ACTIONS}; {remedy}"]


@dataclass(frozen=True)
class Sheet:
    """Pixels; ``top`` is that of the times above the first schedule."""

    axis: Axis
    layouts: tuple[Layout, ...]
    top: float
    bottom: float


def lay_out(compared: Sequence[Timed], *, left: float, top: float) -> Sheet:
    """Rows begin at ``left``. Several schedules have a title each."""
    most = max(timed.peak_until_weight for timed in compared)
    layouts: list[Layout] = []
    below = top + TIMES
    for timed in compared:
        layouts.append(Layout(timed, below + _title_height(compared), max(most, 1e-9)))
        below = layouts[-1].bottom + BETWEEN
    return Sheet(shared_axis(compared, left=left), tuple(layouts), top, below + TIMES)


def width_of_heads(compared: Sequence[Timed]) -> float:
    """Room for the longest name of a row, and for the numbers beside it."""
    shown = (
        part
        for timed in compared
        for rank in range(timed.schedule.num_ranks)
        for part in head_texts(timed, rank)
    )
    return max(text_width(part, LABEL_SIZE) for part in shown) + GAP


def draw_left(sheet: Sheet, *, left: float) -> Iterator[str]:
    """The names of the rows."""
    for layout in sheet.layouts:
        yield from draw_heads(layout, left=left)


def draw_right(sheet: Sheet) -> Iterator[str]:
    """Times, lines, titles and rows."""
    yield from draw_lines(sheet.axis, top=sheet.top + TIMES, bottom=sheet.bottom - TIMES)
    yield from draw_times(sheet.axis, baseline=sheet.top + 12)
    yield from draw_times(sheet.axis, baseline=sheet.bottom - 4)
    for layout in sheet.layouts:
        if len(sheet.layouts) > 1:
            title = shortened(layout.timed.title, TEXT_SIZE, width=NARROWEST / 2)
            yield text(sheet.axis.left, layout.top - 8, title, css="title")
        yield from draw_rows(layout, sheet.axis)


def _title_height(compared: Sequence[Timed]) -> float:
    return TITLE if len(compared) > 1 else 0.0
