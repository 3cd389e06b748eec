"""Reads pictures back: what is drawn, where, and in which colours."""

import re
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree

from jaxpipe.pictures import Timed
from jaxpipe.pictures.elements import size_of
from jaxpipe.pictures.svg import BOLD, HEADING_SIZE
from jaxpipe.pictures.text_width import text_width
from jaxpipe.schedules import Costs, build, simulate

SVG = "{http://www.w3.org/2000/svg}"


class Box(NamedTuple):
    """A rectangle, what is written in it, and what is said of it."""

    css: str
    title: str
    left: float
    top: float
    width: float
    height: float
    label: str = ""

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height


def timed(name: str, num_ranks: int, num_microbatches: int, **how: object) -> Timed:
    """A schedule with its times; ``how`` goes to ``simulate``, ``num_chunks`` to ``build``."""
    num_chunks = how.pop("num_chunks", None)
    schedule = build(name, num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks)
    return Timed(name, schedule, simulate(schedule, **how))


UNEVEN = {
    "costs": Costs(F=1.15, B=1.385, W=0.7, head=0.5, embedding=0.1),
    "transfer": 0.21,
    "sync": "neighbor",
}
"""With these, every cause of idle time occurs."""


def parse(text: str) -> ElementTree.Element:
    """The root, with names that have no prefix; of a page its pictures, below one root."""
    if text.startswith("<!DOCTYPE html>"):
        text = f"<page>{''.join(re.findall(r'<svg.*?</svg>', text, flags=re.DOTALL))}</page>"
    root = ElementTree.fromstring(text)
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
    return root


def boxes(root: ElementTree.Element, css: str) -> list[Box]:
    """The groups of that class, by their first rectangle."""
    return [_box(group) for group in root.iter("g") if css in group.get("class", "").split()]


def texts(root: ElementTree.Element) -> list[Box]:
    """All texts, as wide as they may be."""
    in_boxes = {id(element) for group in root.iter("g") for element in group.iter("text")}
    return [_text(element, is_centered=id(element) in in_boxes) for element in root.iter("text")]


def overlapping(found: list[Box]) -> Iterator[tuple[Box, Box]]:
    """Pairs that share more than a hair's breadth."""
    for one, other in combinations(found, 2):
        beside = one.right <= other.left + 0.02 or other.right <= one.left + 0.02
        if not beside and one.bottom > other.top and other.bottom > one.top:
            yield one, other


def contrast(color: str, other: str) -> float:
    """The ratio of WCAG 2.2, section 1.4.3, from 1 to 21."""
    light, dark = sorted((_luminance(color), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    assert re.fullmatch(r"#[0-9a-f]{6}", color), color
    shares = (int(color[first : first + 2], 16) / 255 for first in (1, 3, 5))
    linear = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _box(group: ElementTree.Element) -> Box:
    rect = group.find("rect")
    assert rect is not None
    place = (float(rect.get(name, "nan")) for name in ("x", "y", "width", "height"))
    return Box(group.get("class", ""), group.findtext("title", ""), *place, label=group.findtext("text", ""))


def _text(element: ElementTree.Element, *, is_centered: bool) -> Box:
    css, content = element.get("class", ""), element.text or ""
    size = HEADING_SIZE if css == "heading" else size_of(css)
    width = text_width(content, size * (BOLD if css in ("heading", "title") else 1))
    share = 0.5 if is_centered else {"end": 1.0}.get(element.get("text-anchor", ""), 0.0)
    left, baseline = float(element.get("x", "nan")) - share * width, float(element.get("y", "nan"))
    return Box(css, content, left, baseline - 0.8 * size, width, size)
