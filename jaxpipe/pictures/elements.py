"""The few SVG elements that pictures are made of, as texts; coordinates are pixels."""

import html

LABEL_SIZE, TEXT_SIZE = 11.0, 13.0
"""Font sizes: in and beside the boxes, and elsewhere; the rules for them are in ``FONT_STYLE``."""

FONT_STYLE = f"""\
text{{font-family:system-ui,"Segoe UI",Helvetica,Arial,"DejaVu Sans",sans-serif;fill:var(--text)}}
text{{font-size:{TEXT_SIZE:g}px}}
text.label{{font-size:{LABEL_SIZE:g}px}}
text.muted{{font-size:{LABEL_SIZE:g}px;fill:var(--muted)}}"""


def size_of(css: str) -> float:
    """The font size of a text of that class."""
    return LABEL_SIZE if css in ("label", "muted") else TEXT_SIZE


def rect(x: float, y: float, width: float, height: float, *, css: str = "", fill: str = "") -> str:
    attributes = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    return f"<rect {attributes}{_attribute('class', css)}{_attribute('fill', fill)}/>"


def text(x: float, y: float, content: str, *, css: str = "", anchor: str = "") -> str:
    """``y`` is the line on which the letters stand."""
    where = f'x="{number(x)}" y="{number(y)}"{_attribute("text-anchor", anchor)}'
    return f"<text {where}{_attribute('class', css)}>{escape(content)}</text>"


def line(x: float, y: float, to_x: float, to_y: float, *, css: str) -> str:
    return f'<path class="{css}" d="M{number(x)} {number(y)}L{number(to_x)} {number(to_y)}"/>'


def group(css: str, title: str, *content: str) -> str:
    """Elements that say ``title`` when the pointer is on them."""
    return f'<g class="{css}"><title>{escape(title)}</title>{"".join(content)}</g>'


def number(value: float) -> str:
    """Hundredths of a pixel are enough."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def escape(content: str) -> str:
    """For XML and HTML; what XML cannot hold, such as control characters in a file's name, becomes a mark."""
    return html.escape(
        "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in content)
    )


def _attribute(name: str, value: str) -> str:
    return f' {name}="{value}"' if value else ""
