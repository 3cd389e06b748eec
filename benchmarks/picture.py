"""The benchmark's lines as one SVG: step time by schedule, then compile time and bytes over m, p and v.

Above, a line for each schedule: a dot is the median of the rounds' ratios, its stroke their spread. Below,
both axes are logarithmic, so that "does not grow" is a flat line.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.cases import MANY_LAYERS, MICROBATCHES, NUM_LAYERS, NUM_RANKS, label_of, takes_chunks
from benchmarks.plots import LINE, Box, Curve, Dot, dot_plot, line_plot
from jaxpipe.schedules import GENERATORS

Row = Mapping[str, Any]

WIDTH, TOP, LINES_HEIGHT = 1180, 70, 250
COLORS = (
    *("#2f6f9f", "#c8553d", "#4d8b57", "#8a5fa8", "#b58b2a", "#555555", "#3aa6a6"),
    *("#d0679d", "#7a5230", "#6b7fd7", "#94a63a", "#e08a3c", "#111111"),
)
SHADES = ("#2f6f9f", "#9cc3dd", "#c8553d", "#e9b3a6", "#4d8b57", "#b4d3ba")
"""Of the settings that steps were timed with: each m and remat."""


ONE_CHUNK = {"interleaved": "1f1b", "looped_bfs": "gpipe"}
"""What they are with one chunk a rank."""


def draw(rows: Sequence[Row]) -> str:
    """The picture of what was measured; a plot without a point is left out."""
    dots = _dot_plots(rows)
    plots = [plot for _, plot in dots]
    top = TOP + max((height for height, _ in dots), default=-TOP) + 70
    curves = [entry for entry in _curves(rows) if entry[2]]
    for number, (title, x_name, found) in enumerate(curves):
        box = Box(70 + 590 * (number % 2), top + 340 * (number // 2) + 40, 360, LINES_HEIGHT)
        plots.append(line_plot(title, x_name, found, box))
    height = top + 340 * ((len(curves) + 1) // 2) + 20
    body = "\n".join(plots)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="#333">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n{_legend(rows)}\n{body}\n</svg>\n'
    )


def _settings(rows: Sequence[Row]) -> dict[tuple[int, str], str]:
    """The colour of each m and remat that was timed on several ranks."""
    found = dict.fromkeys((row["microbatches"], row["remat"]) for row in rows if row.get("part") == "steps")
    return {setting: SHADES[number % len(SHADES)] for number, setting in enumerate(found)}


def _legend(rows: Sequence[Row]) -> str:
    parts = []
    for number, ((m, remat), color) in enumerate(_settings(rows).items()):
        x = 150 + 150 * number
        parts.append(f'<circle cx="{x}" cy="18" r="4" fill="{color}"/>')
        parts.append(f'<text x="{x + 10}" y="22">{escape(f"m={m}, remat {remat}")}</text>')
    return "".join(parts)


def _dot_plots(rows: Sequence[Row]) -> list[tuple[float, str]]:
    """Height and SVG of those that have a dot, from left to right."""
    colors, plots = _settings(rows), list[tuple[float, str]]()
    for key, bounds, title in (
        ("ratio_to_pytorch", "ratio_to_pytorch", "step time over PyTorch's 1F1B"),
        ("ratio_to_unpipelined", "ratio", "step time over the un-pipelined step's"),
    ):
        dots = [
            Dot(
                label_of(
                    row["schedule"],
                    transfer_ticks=row.get("transfer_ticks", 1),
                    program=row.get("program", "scan"),
                ),
                row[key],
                row[f"{bounds}_min"],
                row[f"{bounds}_max"],
                colors[row["microbatches"], row["remat"]],
            )
            for row in rows
            if row.get("part") == "steps" and key in row
        ]
        if dots:
            height = LINE * len({dot.name for dot in dots})
            plots.append((height, dot_plot(title, dots, left=150 + 590 * len(plots), top=TOP, width=400)))
    return plots


def _curves(rows: Sequence[Row]) -> list[tuple[str, str, list[Curve]]]:
    """Title, name of the x axis and curves of each plot over m, p or v."""
    scans = [row for row in rows if row.get("transfer_ticks") == 1 and row.get("program") != "segments"]
    ours = [row for row in scans if row["remat"] == "full"]
    over_m = [row for row in ours if row["layers"] == NUM_LAYERS and row["ranks"] == NUM_RANKS]
    large = [row for row in ours if row["layers"] == MANY_LAYERS and row["microbatches"] == MICROBATCHES]
    over_v = [
        {**row, "schedule": name}
        for row in large
        for name in filter(takes_chunks, GENERATORS)
        if row["ranks"] == NUM_RANKS and row["schedule"] in (name, ONE_CHUNK.get(name))
    ]
    over_p = [row for row in large if row["chunks"] == GENERATORS[row["schedule"]].default_chunks]
    m = f"microbatches (m); p={NUM_RANKS}, {NUM_LAYERS} layers, remat full"
    p = f"ranks (p); m={MICROBATCHES}, {MANY_LAYERS} layers, remat full"
    v = f"chunks of a rank (v; 1 is 1f1b, gpipe); p={NUM_RANKS}, m={MICROBATCHES}, {MANY_LAYERS} layers"
    plots = (
        ("seconds to compile", m, over_m, "microbatches", _seconds),
        ("temporary bytes of a device (MB)", m, over_m, "microbatches", _megabytes),
        ("temporary bytes of a device (MB)", p, over_p, "ranks", _megabytes),
        ("seconds to compile", p, over_p, "ranks", _seconds),
        ("temporary bytes of a device (MB)", v, over_v, "chunks", _megabytes),
        ("seconds to compile", v, over_v, "chunks", _seconds),
    )
    names = list(dict.fromkeys(row["schedule"] for row in rows if "ranks" in row))
    colors = {name: COLORS[number % len(COLORS)] for number, name in enumerate(names)}
    return [
        (title, x_name, _by_schedule(found, key, value, colors)) for title, x_name, found, key, value in plots
    ]


def _by_schedule(
    rows: Sequence[Row], key: str, value: Callable[[Row], float], colors: Mapping[str, str]
) -> list[Curve]:
    """A curve of each schedule that was compiled at several x; none twice."""
    points = {name: dict[float, float]() for name in colors}
    for row in rows:
        points[row["schedule"]][row[key]] = value(row)
    return [
        Curve(name, sorted(found.items()), colors[name]) for name, found in points.items() if len(found) > 1
    ]


def _seconds(row: Row) -> float:
    return row["compile_seconds"]


def _megabytes(row: Row) -> float:
    return row["temp_bytes_per_device"] / 1e6
