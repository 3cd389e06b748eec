"""The slots of one rank over time: a bar for each value, as long as it waits, with its microbatch in it."""

from collections.abc import Iterator, Sequence

from jaxpipe.lowering import TickTable
from jaxpipe.pictures.colors import Shade
from jaxpipe.pictures.elements import group, line, rect, text
from jaxpipe.pictures.legend import Item
from jaxpipe.pictures.svg import EDGE
from jaxpipe.pictures.timeline import BOX
from jaxpipe.schedules import Kind
from tick_pictures.frame import (
    HEAD,
    draw_action,
    draw_legend,
    draw_ticks,
    page,
    shade_of,
    width_of,
    x_at,
    x_of,
)
from tick_pictures.lives import BUFFERS, Life, action_at, lives, num_slots

ROW, BAR, NAME = 20.0, 16.0, 26.0
"""Heights of a slot's row, of the bars in it, and of the line with a buffer's name."""

SAID = {
    "inbox": "from arrival to the action that reads it",
    "residuals": "from F to B",
    "linear inputs": "from F to W",
    "weight inputs": "from B to W",
}


def draw_slots(table: TickTable, rank: int) -> str:
    """The text of a file."""
    found = lives(table, rank)
    kinds = [kind for kind in Kind if any(life.reader.kind is kind for life in found)]
    actions = [action_at(table, tick, rank) for tick in range(table.num_ticks)]
    shades = {shade_of(action, table.placement) for action in actions if action}
    shades |= {_bar_shade(kind) for kind in kinds}
    items = [Item(f"waits for {kind}", f"box {kind} {_bar_shade(kind).css}") for kind in kinds]
    legend, below = draw_legend(items, HEAD)
    top = below + 34
    rows = [*_rows(table, top + BOX + 4)]
    bottom = rows[-1][1] + ROW
    parts = [*legend, *draw_ticks(table.num_ticks, top=top, bottom=bottom)]
    parts.append(text(EDGE, top + 18, f"rank {rank}", css="label"))
    for tick, action in enumerate(actions):
        parts.append(draw_action(action, table.placement, tick, top=top + 4))
    for (buffer, slot), row_top in rows:
        parts += _draw_row(found, buffer, slot, top=row_top, right=x_of(table.num_ticks))
    size = width_of(table.num_ticks), bottom + EDGE
    return page(f"{table.name}: what waits on rank {rank}", parts, shades=sorted(shades), size=size)


def _rows(table: TickTable, top: float) -> Iterator[tuple[tuple[str, int], float]]:
    for buffer in BUFFERS:
        top += NAME
        for slot in range(num_slots(table, buffer)):
            yield (buffer, slot), top
            top += ROW


def _draw_row(found: Sequence[Life], buffer: str, slot: int, *, top: float, right: float) -> Iterator[str]:
    if slot == 0:
        name = f"{buffer}: {SAID[buffer]}"
        yield rect(x_of(0) - 1, top - NAME + 8, right - x_of(0) + 2, NAME - 10, css="page")
        yield text(EDGE, top - 7, name, css="label")
    yield text(EDGE, top + 13, f"slot {slot}", css="muted")
    yield line(x_of(0), top + ROW - 1, right, top + ROW - 1, css="grid")
    for life in found:
        if (life.buffer, life.slot) == (buffer, slot):
            yield _draw_bar(life, top=top + 1)


def _draw_bar(life: Life, *, top: float) -> str:
    left, right = x_at(life.written), x_at(life.read)
    label = text((left + right) / 2, top + 12, str(life.reader.microbatch), css="label")
    css = f"box {life.reader.kind} {_bar_shade(life.reader.kind).css}"
    said = f"{life.buffer} slot {life.slot}, tick {life.written.tick} to {life.read.tick}, for {life.reader}"
    return group(css, said, rect(left, top, right - left, BAR), label)


def _bar_shade(kind: Kind) -> Shade:
    """Bars tell what reads them, whatever its chunk."""
    return Shade(kind, 0, 1)
