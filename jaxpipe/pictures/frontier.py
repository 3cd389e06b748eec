"""Layouts as points: bytes of a device across, seconds of a step up, the fastest for each amount joined."""

from collections.abc import Callable, Iterator, Sequence
from math import floor, log10
from typing import NamedTuple

from jaxpipe.pictures.colors import SCHEMES
from jaxpipe.pictures.elements import FONT_STYLE, escape, line, number, text

WIDTH, HEIGHT = 1080.0, 560.0
LEFT, RIGHT, TOP, BOTTOM = 76.0, 40.0, 64.0, 56.0
RADIUS, LINE = 5.0, 15.0


class Point(NamedTuple):
    """A layout; ``label`` is what there is to say of it."""

    seconds: float
    gigabytes: float
    label: str


def draw_frontier(points: Sequence[Point], *, limit: float, best: Point, heading: str) -> str:
    """An SVG; ``limit`` is in gigabytes. At least one point; those to the right of the limit do not fit."""
    points = sorted(points, key=lambda point: point.gigabytes)
    most = max(limit, *(point.gigabytes for point in points)) * 1.08
    highest = max(point.seconds for point in points) * 1.12

    def x(gigabytes: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * gigabytes / most

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * seconds / highest

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{number(WIDTH)}" height="{number(HEIGHT)}" '
        f'viewBox="0 0 {number(WIDTH)} {number(HEIGHT)}">',
        f"<title>{escape(heading)}</title>",
        f"<style>\n{_style()}\n</style>",
        f'<rect class="page" width="{number(WIDTH)}" height="{number(HEIGHT)}"/>',
        text(LEFT, 28, heading, css="title"),
        *_axes(x, y, most=most, highest=highest),
        f'<rect class="beyond" x="{number(x(limit))}" y="{number(TOP)}" '
        f'width="{number(WIDTH - RIGHT - x(limit))}" height="{number(HEIGHT - TOP - BOTTOM)}"/>',
        line(x(limit), TOP, x(limit), HEIGHT - BOTTOM, css="limit"),
        text(x(limit) - 6, TOP + 14, f"{limit:g} GB", css="muted", anchor="end"),
        *_steps(points, x, y),
        *(_point(point, x, y, css=_class(point, limit, best)) for point in points),
        *_labels(points, x, y),
        "</svg>",
        "",
    ]
    return "\n".join(parts)


def _class(point: Point, limit: float, best: Point) -> str:
    if point == best:
        return "best"
    return "fits" if point.gigabytes <= limit else "large"


def _axes(
    x: Callable[[float], float], y: Callable[[float], float], *, most: float, highest: float
) -> Iterator[str]:
    for gigabytes in _round_numbers(most):
        yield line(x(gigabytes), TOP, x(gigabytes), HEIGHT - BOTTOM, css="grid")
        yield text(x(gigabytes), HEIGHT - BOTTOM + 18, f"{gigabytes:g}", css="muted", anchor="middle")
    for seconds in _round_numbers(highest):
        yield line(LEFT, y(seconds), WIDTH - RIGHT, y(seconds), css="grid")
        yield text(LEFT - 8, y(seconds) + 4, f"{seconds:g}", css="muted", anchor="end")
    yield text(WIDTH - RIGHT, HEIGHT - 14, "GB of a device", css="muted", anchor="end")
    yield text(LEFT, TOP - 12, "seconds of a step", css="muted")


def _steps(
    points: Sequence[Point], x: Callable[[float], float], y: Callable[[float], float]
) -> Iterator[str]:
    """The frontier: with more memory the time stays as it is until the next point."""
    path = f"M{number(x(points[0].gigabytes))} {number(y(points[0].seconds))}"
    lowest = points[0].seconds
    for point in points[1:]:
        if point.seconds < lowest:
            path += f"H{number(x(point.gigabytes))}V{number(y(point.seconds))}"
            lowest = point.seconds
    yield f'<path class="frontier" d="{path}"/>'


def _point(point: Point, x: Callable[[float], float], y: Callable[[float], float], *, css: str) -> str:
    circle = (
        f'<circle cx="{number(x(point.gigabytes))}" cy="{number(y(point.seconds))}" r="{number(RADIUS)}"/>'
    )
    return f'<g class="{css}"><title>{escape(point.label)}</title>{circle}</g>'


def _labels(
    points: Sequence[Point], x: Callable[[float], float], y: Callable[[float], float]
) -> Iterator[str]:
    """Numbers above the points, and what they mean where nothing else is: below the frontier, left."""
    top = HEIGHT - BOTTOM - 12 - LINE * (len(points) - 1)
    for index, point in enumerate(points):
        number_above = str(index + 1)
        yield text(x(point.gigabytes), y(point.seconds) - 10, number_above, css="label", anchor="middle")
        yield text(LEFT + 12, top + LINE * index, f"{number_above}  {point.label}", css="label")


def _round_numbers(end: float) -> list[float]:
    """1, 2 or 5 times a power of ten apart, about eight of them."""
    least = end / 9
    power = 10.0 ** floor(log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
    return [step * count for count in range(int(end / step) + 1)]


def _style() -> str:
    light, dark = (
        "".join(f"--{name}:{color};" for name, color in SCHEMES[scheme].items())
        for scheme in ("light", "dark")
    )
    return "\n".join(
        (
            f":root{{color-scheme:light dark;{light}}}",
            f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}",
            FONT_STYLE,
            ".page{fill:var(--page)}",
            ".title{font-weight:600}",
            ".grid{stroke:var(--grid);fill:none}",
            ".beyond{fill:var(--idle);opacity:.6}",
            ".limit{stroke:var(--text);stroke-dasharray:5 4;fill:none}",
            ".frontier{stroke:#56b4e9;stroke-width:2;fill:none}",
            ".fits circle{fill:#56b4e9}",
            ".best circle{fill:#1fa980;stroke:var(--text);stroke-width:1.5}",
            ".large circle{fill:var(--page);stroke:#cc79a7;stroke-width:2}",
        )
    )
