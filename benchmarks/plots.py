"""Two kinds of plot as SVG: dots in lines, and curves over logarithmic axes."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

GRID, AXIS = "#ddd", "#888"


class Dot(NamedTuple):
    """A measurement with its spread, in the line of its name."""

    name: str
    value: float
    low: float
    high: float
    color: str


class Curve(NamedTuple):
    """``points`` are (x, y), at least one, in the order of x."""

    name: str
    points: Sequence[tuple[float, float]]
    color: str


class Box(NamedTuple):
    """The area of a plot in pixels, without its labels."""

    left: float
    top: float
    width: float
    height: float


LINE = 19
"""Height of a line of dots, in pixels."""


def dot_plot(title: str, dots: Sequence[Dot], *, left: float, top: float, width: float) -> str:
    """One line for each name, in the order of the dots; a thick line marks 1."""
    names = list(dict.fromkeys(dot.name for dot in dots))
    box = Box(left, top, width, LINE * len(names))
    bounds = [1.0, *(bound for dot in dots for bound in (dot.low, dot.high))]
    ticks = [tick / 10 for tick in range(2, 41) if min(bounds) - 0.05 < tick / 10 < max(bounds) + 0.05]
    across = _linear(min(*bounds, *ticks), max(*bounds, *ticks), left, left + width)
    parts = [_title(title, box)]
    for tick in ticks:
        stroke = f'stroke="{AXIS}" stroke-width="2"' if tick == 1 else f'stroke="{GRID}"'
        parts.append(f'<path d="M{across(tick):.1f},{top} v{box.height}" {stroke}/>')
        parts.append(_text(across(tick), top + box.height + 15, f"{tick:g}", anchor="middle"))
    for number, name in enumerate(names):
        parts.append(_text(left - 10, top + LINE * (number + 0.7), name, anchor="end"))
        own = [dot for dot in dots if dot.name == name]
        for place, dot in enumerate(own):
            y = top + LINE * (number + (place + 1) / (len(own) + 1))
            low, high = across(dot.low), across(dot.high)
            parts.append(f'<path d="M{low:.1f},{y:.1f} H{high:.1f}" stroke="{dot.color}" opacity="0.5"/>')
            parts.append(f'<circle cx="{across(dot.value):.1f}" cy="{y:.1f}" r="3" fill="{dot.color}"/>')
    return "\n".join(parts)


def line_plot(title: str, x_name: str, curves: Sequence[Curve], box: Box) -> str:
    """All curves, each with its name at its end; at least one."""
    xs = sorted({x for curve in curves for x, _ in curve.points})
    ys = [y for curve in curves for _, y in curve.points]
    ticks = [tick for tick in _round_numbers() if min(ys) / 1.5 < tick < max(ys) * 1.5]
    across = _logarithmic(xs[0], xs[-1], box.left, box.left + box.width)
    up = _logarithmic(min(*ys, *ticks), max(*ys, *ticks), box.top + box.height, box.top)
    parts = [_title(title, box)]
    for tick in ticks:
        parts.append(f'<path d="M{box.left},{up(tick):.1f} h{box.width}" stroke="{GRID}"/>')
        parts.append(_text(box.left - 8, up(tick) + 4, f"{tick:g}", anchor="end"))
    below = box.top + box.height
    for x in xs:
        parts.append(_text(across(x), below + 18, f"{x:g}", anchor="middle"))
    parts.append(_text(box.left, below + 36, x_name))
    ends = []
    for curve in curves:
        points = [(across(x), up(y)) for x, y in curve.points]
        path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<path d="{path}" fill="none" stroke="{curve.color}" stroke-width="1.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{curve.color}"/>' for x, y in points]
        ends.append((points[-1][1], curve))
    return "\n".join(parts + _labels(ends, box))


def _labels(ends: Sequence[tuple[float, Curve]], box: Box) -> list[str]:
    """A name beside the end of each curve, moved where it would cover another."""
    labels, ordered = [], sorted(ends, key=lambda end: end[0])
    places = spread_out([y for y, _ in ordered], gap=13, most=box.top + box.height + 10)
    for (y, curve), place in zip(ordered, places, strict=True):
        x = box.left + box.width
        parts = f'<path d="M{x + 4},{y:.1f} L{x + 14},{place:.1f}" stroke="{curve.color}" opacity="0.5"/>'
        labels.append(parts + _text(x + 17, place + 4, curve.name, color=curve.color))
    return labels


def spread_out(places: Sequence[float], *, gap: float, most: float) -> list[float]:
    """Ascending places, moved so that they are ``gap`` apart: down, and up again from ``most``."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else place)
    limit = most
    for number in reversed(range(len(moved))):
        moved[number] = min(moved[number], limit)
        limit = moved[number] - gap
    return moved


def _title(title: str, box: Box) -> str:
    return f'<text x="{box.left}" y="{box.top - 14}" font-size="13" font-weight="bold">{escape(title)}</text>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", color: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(words)}</text>'


def _round_numbers() -> list[float]:
    return [digit * 10**power for power in range(-2, 5) for digit in (1, 2, 5)]


def _linear(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * (value - low) / ((high - low) or 1.0)


def _logarithmic(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Maps values to pixels, evenly in their logarithm."""
    scale = _linear(math.log(low), math.log(high), start, end)
    return lambda value: scale(math.log(value))
