"""The benchmark's lines as one SVG: step time and memory against the number of microbatches.

Both axes of both panels are logarithmic, so that "does not grow" is a flat line. Thin strokes are the
spread of the rounds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]

WIDTH, HEIGHT = 820, 340
COLORS = ("#2f6f9f", "#c8553d", "#4d8b57", "#8a5fa8", "#b58b2a", "#555555")


class Panel(NamedTuple):
    """A plot: ``value`` of a row, and ``spread``, its lowest and highest; ``left`` in pixels."""

    title: str
    left: int
    value: Callable[[Row], float]
    spread: Callable[[Row], tuple[float, float]]
    ticks: tuple[float, ...]


def draw(rows: Sequence[Row]) -> str:
    """The picture of at least one row."""
    megabytes = [row["temp_bytes_per_device"] / 1e6 for row in rows]
    panels = (
        Panel(
            "step time over the un-pipelined step's",
            60,
            lambda row: row["ratio_to_unpipelined"],
            lambda row: (row["ratio_min"], row["ratio_max"]),
            (0.5, 0.7, 1.0, 1.4, 2.0),
        ),
        Panel(
            "temporary bytes of a device (MB)",
            470,
            lambda row: row["temp_bytes_per_device"] / 1e6,
            lambda row: (row["temp_bytes_per_device"] / 1e6,) * 2,
            tuple(tick for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if tick < 2 * max(megabytes)),
        ),
    )
    body = "\n".join(_panel(panel, rows) for panel in panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" font-size="12" fill="#333">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


_TOP, _BOTTOM, _PANEL_WIDTH = 45, 290, 260


def _panel(panel: Panel, rows: Sequence[Row]) -> str:
    microbatches = sorted({row["microbatches"] for row in rows})
    across = _log_scale(microbatches, panel.left, panel.left + _PANEL_WIDTH)
    bounds = [bound for row in rows for bound in panel.spread(row)]
    ticks = [tick for tick in panel.ticks if min(bounds) / 1.5 < tick < max(bounds) * 1.5]
    up = _log_scale([*bounds, *ticks], _BOTTOM, _TOP)
    parts = [f'<text x="{panel.left}" y="22" font-size="13" font-weight="bold">{panel.title}</text>']
    for tick in ticks:
        y = up(tick)
        parts.append(f'<path d="M{panel.left},{y:.1f} h{_PANEL_WIDTH}" stroke="#ddd"/>')
        parts.append(f'<text x="{panel.left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for m in microbatches:
        parts.append(f'<text x="{across(m):.1f}" y="{_BOTTOM + 20}" text-anchor="middle">{m}</text>')
    parts.append(f'<text x="{panel.left}" y="{_BOTTOM + 40}">microbatches</text>')
    names = list(dict.fromkeys(row["schedule"] for row in rows))
    ends = []
    for number, name in enumerate(names):
        own = sorted((row for row in rows if row["schedule"] == name), key=lambda row: row["microbatches"])
        color = COLORS[number % len(COLORS)]
        parts.append(_line([(across(row["microbatches"]), up(panel.value(row))) for row in own], color))
        for row in own:
            x, (low, high) = across(row["microbatches"]), map(up, panel.spread(row))
            parts.append(f'<path d="M{x:.1f},{low:.1f} V{high:.1f}" stroke="{color}" opacity="0.5"/>')
        ends.append((up(panel.value(own[-1])), name, color))
    return "\n".join(parts + _labels(ends, panel.left + _PANEL_WIDTH + 10))


def _line(points: Sequence[tuple[float, float]], color: str) -> str:
    path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points)
    return f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2"/>{dots}'


def _labels(ends: Sequence[tuple[float, str, str]], x: float) -> list[str]:
    """A name beside the end of each line, moved down where it would cover another."""
    labels, lowest = [], -math.inf
    for y, name, color in sorted(ends):
        lowest = max(y, lowest + 15)
        labels.append(f'<text x="{x}" y="{lowest + 4:.1f}" fill="{color}">{name}</text>')
    return labels


def _log_scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """Maps the values' range to pixels, evenly in their logarithm."""
    low, high = math.log(min(values)), math.log(max(values))
    return lambda value: start + (end - start) * (math.log(value) - low) / ((high - low) or 1.0)
