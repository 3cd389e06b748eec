"""A picture as one SVG file: it needs nothing else, and follows the reader's colour scheme."""

from collections.abc import Iterator, Sequence

from jaxpipe.pictures.axis import NARROWEST
from jaxpipe.pictures.colors import style
from jaxpipe.pictures.elements import FONT_STYLE, TEXT_SIZE, escape, number, rect, text
from jaxpipe.pictures.figures import Table, comparison_table, figures, heading
from jaxpipe.pictures.legend import SAMPLE, draw_sample, legend, shades_of
from jaxpipe.pictures.sheet import draw_left, draw_right, lay_out, width_of_heads
from jaxpipe.pictures.text_width import shortened, text_width
from jaxpipe.pictures.timed import Timed
from jaxpipe.pictures.timeline import PATTERNS, STYLE

EDGE, LINE, GAP = 16.0, 26.0, 24.0
"""Pixels: what stays free around the picture, the height of a line of text, and what stays free in it."""
HEADING_SIZE = 18.0
LONGEST_NAME = 280.0
"""Pixels that a schedule's name may take in the table."""
BOLD = 1.15
"""How much wider bold letters are, at most."""

SHEET_STYLE = f"""\
{FONT_STYLE}
text.title,text.heading{{font-weight:600}}
text.heading{{font-size:{HEADING_SIZE:g}px}}
.page{{fill:var(--page)}}
.held-b-sample rect{{fill:var(--held-b)}}
.held-w-sample rect{{fill:var(--held-w)}}
{STYLE}"""


def svg(compared: Sequence[Timed]) -> str:
    """One schedule, or several under one time axis, with their figures: the text of a file.

    What is not on the time axis stays in what a window shows without scrolling.
    """
    left = EDGE + width_of_heads(compared)
    width = left + lay_out(compared, left=left, top=0).axis.width + EDGE
    right = min(width - EDGE, NARROWEST)
    title = shortened(heading(compared), HEADING_SIZE * BOLD, width=right - EDGE)
    parts = [text(EDGE, EDGE + HEADING_SIZE, title, css="heading")]
    top = EDGE + HEADING_SIZE + GAP
    if len(compared) == 1:
        said = [f"{name} {value}" for name, value in figures(compared[0])]
        placed = [*flow([text_width(part, TEXT_SIZE) for part in said], top, right=right)]
        parts += (text(x, y, part) for (x, y), part in zip(placed, said, strict=True))
        top = placed[-1][1] + GAP
    else:
        table = comparison_table(compared)
        parts += _draw_table(table, top)
        top += LINE * (1 + len(table.rows)) + GAP / 2
    items = legend(compared)
    placed = [*flow([SAMPLE + 6 + text_width(item.text, TEXT_SIZE) for item in items], top, right=right)]
    for (x, y), item in zip(placed, items, strict=True):
        parts += [draw_sample(item, x, y - 15), text(x + SAMPLE + 6, y, item.text)]
    sheet = lay_out(compared, left=left, top=placed[-1][1] + GAP)
    parts += [*draw_left(sheet, left=EDGE), *draw_right(sheet)]
    frame = _frame(compared, width=width, height=sheet.bottom + EDGE)
    return "\n".join([*frame, *parts, "</svg>", ""])


def flow(widths: Sequence[float], top: float, *, right: float) -> Iterator[tuple[float, float]]:
    """Where things of these widths begin, side by side in as many lines as they need; the baselines."""
    x, y = EDGE, top
    for width in widths:
        if x > EDGE and x + width > right:
            x, y = EDGE, y + LINE
        yield x, y
        x += width + GAP


def _frame(compared: Sequence[Timed], *, width: float, height: float) -> Iterator[str]:
    size = f'width="{number(width)}" height="{number(height)}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {number(width)} {number(height)}">'
    yield f"<title>{escape(heading(compared))}</title>"
    yield f"<style>\n{style(shades_of(compared))}\n{SHEET_STYLE}\n</style>"
    yield PATTERNS
    yield rect(0, 0, width, height, css="page")


def _draw_table(table: Table, top: float) -> Iterator[str]:
    """Names to the left, numbers to the right of their columns."""
    names = (shortened(row[0], TEXT_SIZE, width=LONGEST_NAME) for row in table.rows)
    lines = (table.header, *((name, *row[1:]) for name, row in zip(names, table.rows, strict=True)))
    right, first = EDGE, True
    for cells in zip(*lines, strict=True):
        right += max(text_width(cell, TEXT_SIZE * BOLD) for cell in cells) + (0 if first else GAP)
        for row, cell in enumerate(cells):
            css = "" if row else "title"
            at = EDGE if first else right
            yield text(at, top + LINE * row, cell, css=css, anchor="" if first else "end")
        first = False
