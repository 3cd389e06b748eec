"""Bars of what a device holds, by part; a dash marks what the compiler says of all of it."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.memory import Measured

COLORS = {
    "master weights": "#2f6f9f",
    "moments": "#7fb2d6",
    "weights in compute dtype": "#8a5fa8",
    "accumulators": "#c8553d",
    "stash": "#4d8b57",
    "inbox and messages": "#a9cf9f",
    "work of a tick": "#b58b2a",
    "sums after the ticks": "#e3a84f",
}

LEFT, TOP, BAR, STEP, WIDTH = 150, 84, 18, 28, 900


def draw(measured: "Mapping[str, Measured]") -> str:
    """One bar for each, of the moment when most is held; at least one."""
    scale = (WIDTH - LEFT - 90) / max(each.total for each in measured.values())
    rows = "\n".join(
        _bar(name, each, TOP + STEP * index, scale) for index, (name, each) in enumerate(measured.items())
    )
    height = TOP + STEP * len(measured) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="#333">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n{_legend()}\n{rows}\n</svg>\n'
    )


def _bar(name: str, measured: "Measured", y: float, scale: float) -> str:
    memory, x = measured.predicted, float(LEFT)
    are_over = memory.after_ticks > memory.ticks
    sizes = (
        memory.weights,
        memory.moments,
        0 if are_over else memory.compute_weights,
        memory.accumulators,
        memory.stash,
        memory.messages,
        0 if are_over else max(memory.work.values()),
        memory.reduction if are_over else 0,
    )
    parts = [f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>']
    for size, color in zip(sizes, COLORS.values(), strict=True):
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{size * scale:.1f}" height="{BAR}" fill="{color}"/>')
        x += size * scale
    end = LEFT + measured.total * scale
    parts.append(f'<path d="M{end:.1f},{y - 3} v{BAR + 6}" stroke="black" stroke-width="1.5"/>')
    parts.append(f'<text x="{max(end, x) + 8:.1f}" y="{y + 13}">{measured.total / 1e6:.1f} MB</text>')
    return "".join(parts)


def _legend() -> str:
    parts = []
    for index, (name, color) in enumerate(COLORS.items()):
        x, y = 20 + 215 * (index % 4), 12 + 20 * (index // 4)
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{x + 18}" y="{y + 10}">{escape(name)}</text>')
    parts.append('<path d="M26,51 v16" stroke="black" stroke-width="1.5"/>')
    return "".join([*parts, '<text x="38" y="63">as compiled</text>'])
