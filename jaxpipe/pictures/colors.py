"""Colours: one hue for each kind of action, told apart by colour-blind eyes too; one shade for each chunk.

The hues are those of Okabe and Ito ("Color Universal Design", 2008). Boxes are the same by day and by
night, dark text on a light fill; the page around them changes with the reader's colour scheme.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from jaxpipe.schedules import Kind

HUES: Mapping[Kind, str] = {
    Kind.F: "#56b4e9",
    Kind.R: "#f0e442",
    Kind.B: "#e69f00",
    Kind.W: "#1fa980",
    Kind.BW: "#cc79a7",
}
BOX_TEXT = "#0b0d10"
LIGHTEST = 0.62
"""How much white is in the lightest shade."""

SCHEMES: Mapping[str, Mapping[str, str]] = {
    "light": {
        "page": "#ffffff",
        "panel": "#f4f5f7",
        "text": "#15181d",
        "muted": "#545b66",
        "grid": "#d5d9df",
        "idle": "#e6e8ec",
        "idle-mark": "#8d95a1",
        "shared": "#9099a5",
        "held-b": "#6a51a3",
        "held-w": "#b9a9db",
    },
    "dark": {
        "page": "#111418",
        "panel": "#1b2027",
        "text": "#eceff3",
        "muted": "#a9b1bd",
        "grid": "#333a44",
        "idle": "#262c35",
        "idle-mark": "#7d8794",
        "shared": "#6b7582",
        "held-b": "#b49ae6",
        "held-w": "#5d4c8c",
    },
}
"""What the page is painted with, by colour scheme; ``var(--page)`` and so on in a style."""


class Shade(NamedTuple):
    """The colour of a kind's boxes of one chunk."""

    kind: Kind
    chunk: int
    num_chunks: int

    @property
    def css(self) -> str:
        """Its class, such as ``BW1of2``."""
        return f"{self.kind}{self.chunk}of{self.num_chunks}"


def fill(shade: Shade) -> str:
    """The first chunk has the full colour, the last is the lightest."""
    white = LIGHTEST * shade.chunk / max(shade.num_chunks - 1, 1)
    return _mix(HUES[shade.kind], "#ffffff", white)


def outline(kind: Kind) -> str:
    """Dark enough to show a light shade on a white page."""
    return _mix(HUES[kind], "#000000", 0.5)


def style(shades: Iterable[Shade]) -> str:
    """Rules for both colour schemes, and for boxes of ``shades``."""
    shades = set(shades)
    kinds = {shade.kind for shade in shades}
    light, dark = (_variables(scheme) for scheme in ("light", "dark"))
    rules = [f":root{{color-scheme:light dark;{light}}}"]
    rules.append(f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}")
    rules += (f".{kind} rect{{stroke:{outline(kind)};stroke-width:.75}}" for kind in Kind if kind in kinds)
    rules += (f".{shade.css} rect{{fill:{fill(shade)}}}" for shade in sorted(shades))
    return "\n".join(rules)


def _variables(scheme: str) -> str:
    return "".join(f"--{name}:{color};" for name, color in SCHEMES[scheme].items())


def _mix(color: str, other: str, share: float) -> str:
    pairs = zip(_channels(color), _channels(other), strict=True)
    return "#" + "".join(f"{round(one + (two - one) * share):02x}" for one, two in pairs)


def _channels(color: str) -> tuple[int, ...]:
    return tuple(int(color[first : first + 2], 16) for first in (1, 3, 5))
