"""The time axis that all timelines of a picture share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10

from jaxpipe.pictures.elements import LABEL_SIZE, line, text
from jaxpipe.pictures.labels import labels_of
from jaxpipe.pictures.text_width import text_width, width_of_box
from jaxpipe.pictures.timed import Timed

NARROWEST, WIDEST = 1080.0, 3600.0
"""Pixels: what a desktop's window shows, and what one may still want to scroll through."""


@dataclass(frozen=True)
class Axis:
    """Seconds from 0 to ``end`` become pixels from ``left`` to ``left + width``."""

    left: float
    width: float
    end: float

    def x(self, seconds: float) -> float:
        return self.left + self.width * (seconds / self.end)


def shared_axis(compared: Sequence[Timed], *, left: float) -> Axis:
    """As wide as the labels of all but the shortest quarter of the actions need, within limits."""
    end = max(timed.simulation.makespan for timed in compared)
    wanted = max(_width_with_labels(timed, end) for timed in compared)
    return Axis(left, min(max(wanted, NARROWEST), WIDEST), end)


def draw_lines(axis: Axis, *, top: float, bottom: float) -> Iterator[str]:
    """Lines at round times."""
    for time in round_times(axis):
        yield line(axis.x(time), top, axis.x(time), bottom, css="grid")


def draw_times(axis: Axis, *, baseline: float) -> Iterator[str]:
    """Each stands behind its line, since the first has no room before it."""
    for time in round_times(axis):
        yield text(axis.x(time) + 3, baseline, f"{time:g}", css="muted")


def round_times(axis: Axis) -> list[float]:
    """1, 2 or 5 times a power of ten apart, such that each has room for its number, the last one too."""
    room = text_width("8.88e+88", LABEL_SIZE) + 8
    least = axis.end * room / axis.width
    power = 10.0 ** floor(log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
    return [step * count for count in range(max(floor((axis.end - least) / step), 0) + 1)]


def _width_with_labels(timed: Timed, end: float) -> float:
    simulation = timed.simulation
    durations = sorted(simulation.end[action] - start for action, start in simulation.start.items())
    duration = durations[len(durations) // 4]
    widest = max((labels_of(action)[-1] for action in simulation.start), key=len)
    return width_of_box(widest, LABEL_SIZE) * (end / duration)
