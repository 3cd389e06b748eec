"""What the pictures of a tick table share: the page, its columns of ticks, boxes and arrows."""

from collections.abc import Iterator, Sequence
from math import hypot

from jaxpipe.lowering.slots import Moment, Phase
from jaxpipe.pictures.colors import Shade, style
from jaxpipe.pictures.elements import escape, group, line, number, rect, text
from jaxpipe.pictures.labels import KINDS
from jaxpipe.pictures.legend import SAMPLE, Item, draw_sample
from jaxpipe.pictures.svg import EDGE, GAP, HEADING_SIZE, SHEET_STYLE, flow
from jaxpipe.pictures.text_width import text_width
from jaxpipe.pictures.timeline import BOX, PATTERNS
from jaxpipe.schedules import Action, Kind, Placement

LEFT, COLUMN = 70.0, 27.0
"""Pixels: where the first tick begins, and the width of a tick."""
WIDTH = 900.0
"""What a page of text has room for; thirty ticks fit."""
HEAD = EDGE + HEADING_SIZE + GAP
"""Pixels down to what stands below the title."""

PLACE_IN_TICK = {Phase.ENDS: 0.06, Phase.ACTION: 0.5, Phase.ARRIVAL: 0.94}

TICK_STYLE = """\
.end rect{fill:var(--panel);stroke:var(--muted)}
.end text{text-anchor:middle}
.way{stroke:var(--text);stroke-width:1.4;fill:none;stroke-linejoin:round}
.tip{fill:var(--text)}
.dropped{stroke:var(--muted);stroke-width:1;stroke-dasharray:3 3;fill:none}
.dropped-tip{fill:var(--muted)}
.cell rect{fill:none;stroke:var(--idle-mark)}
.cell text{text-anchor:middle}
.written rect{stroke-width:2.5;stroke-dasharray:4 2}
.panel{fill:var(--panel)}
.chosen rect{stroke:var(--text);stroke-width:2}"""

Point = tuple[float, float]


def page(title: str, parts: Sequence[str], *, shades: Sequence[Shade], size: tuple[float, float]) -> str:
    """The text of a file."""
    width, height = (number(length) for length in size)
    frame = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{style(set(shades))}\n{SHEET_STYLE}\n{TICK_STYLE}\n</style>",
        PATTERNS,
        rect(0, 0, *size, css="page"),
        text(EDGE, EDGE + HEADING_SIZE, title, css="heading"),
    )
    return "\n".join([*frame, *parts, "</svg>", ""])


def draw_legend(items: Sequence[Item], top: float) -> tuple[list[str], float]:
    """Samples with their meaning, and the baseline of the last line."""
    widths = [SAMPLE + 6 + text_width(item.text, 13) for item in items]
    places = [*flow(widths, top, right=WIDTH - EDGE)]
    parts = []
    for (x, y), item in zip(places, items, strict=True):
        parts += [draw_sample(item, x, y - 15), text(x + SAMPLE + 6, y, item.text)]
    return parts, places[-1][1]


def kind_items(kinds: Sequence[Kind], placement: Placement) -> list[Item]:
    """The colours of kinds."""
    return [
        Item(f"{kind} {KINDS[kind]}", f"box {kind} {Shade(kind, 0, placement.num_chunks).css}")
        for kind in kinds
    ]


def width_of(num_ticks: int) -> float:
    """Of a picture with a column a tick."""
    return max(WIDTH, x_of(num_ticks) + EDGE)


def x_of(tick: float) -> float:
    return LEFT + COLUMN * tick


def x_at(moment: Moment) -> float:
    return x_of(moment.tick + PLACE_IN_TICK[moment.phase])


def draw_ticks(num_ticks: int, *, top: float, bottom: float) -> Iterator[str]:
    """A line between each two ticks, and their numbers."""
    yield text(EDGE, top - 5, "tick", css="muted")
    for tick in range(num_ticks + 1):
        yield line(x_of(tick), top, x_of(tick), bottom, css="grid")
    for tick in range(num_ticks):
        yield text(x_of(tick + 0.5), top - 5, str(tick), css="muted", anchor="middle")


def draw_action(
    action: Action | None, placement: Placement, tick: int, *, top: float, chosen: bool = False
) -> str:
    """A rank's box in a tick."""
    box = rect(x_of(tick) + 1, top, COLUMN - 2, BOX)
    if action is None:
        return group("idle dependency", f"idle in tick {tick}", box)
    css = f"box {action.kind} {shade_of(action, placement).css}{' chosen' if chosen else ''}"
    label = text(x_of(tick + 0.5), top + 14, f"{action.kind}{action.microbatch}", css="label")
    return group(css, f"{action}: {KINDS[action.kind]}, tick {tick}", box, label)


def shade_of(action: Action, placement: Placement) -> Shade:
    return Shade(action.kind, placement.chunk(action.stage, action.pipe), placement.num_chunks)


def arrow(*points: Point, css: str = "way", tip: str = "tip") -> str:
    """A line through ``points`` with a tip at its end."""
    (before_x, before_y), (x, y) = points[-2:]
    length = hypot(x - before_x, y - before_y)
    dx, dy = (x - before_x) / length, (y - before_y) / length
    base_x, base_y = x - 6 * dx, y - 6 * dy
    corners = ((x, y), (base_x - 3 * dy, base_y + 3 * dx), (base_x + 3 * dy, base_y - 3 * dx))
    return _path((*points[:-1], (base_x, base_y)), css=css) + _path(corners, css=tip, end="Z")


def _path(points: Sequence[Point], *, css: str, end: str = "") -> str:
    steps = "L".join(f"{number(x)} {number(y)}" for x, y in points)
    return f'<path class="{css}" d="M{steps}{end}"/>'
