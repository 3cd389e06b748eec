"""Grids in colour: the kind is the colour, the chunk its shade, and what runs in a second pipe is underlined.

Colours are those of the palette of 256 that terminals have.
"""

from collections.abc import Iterator

from jaxpipe.pictures.labels import KINDS
from jaxpipe.schedules import Action, Kind, Schedule, Simulation
from jaxpipe.schedules.grid import Paint, idle_legend

SHADES = {
    Kind.F: (75, 117, 153, 195),
    Kind.R: (227, 228, 230, 231),
    Kind.B: (214, 221, 222, 229),
    Kind.W: (72, 114, 157, 194),
    Kind.BW: (176, 182, 219, 225),
}
"""Backgrounds, from the full colour to the lightest; chunks beyond the last share it."""
TEXT = 16
"""Black, on all of them."""
RESET = "\x1b[0m"


def painter(schedule: Schedule) -> Paint:
    """What colours a schedule's actions."""
    placement = schedule.placement

    def paint(action: Action, text: str) -> str:
        return _paint(action.kind, text, chunk=placement.chunk(action.stage, action.pipe), pipe=action.pipe)

    return paint


def color_legend(schedule: Schedule, simulation: Simulation) -> list[str]:
    """What colours and marks mean, those that occur."""
    found = {action.kind for action in simulation.start}
    kinds = [kind for kind in Kind if kind in found]
    said = ["  ".join(f"{_paint(kind, str(kind))} {KINDS[kind]}" for kind in kinds)]
    if places := [*_places(schedule, kinds[0])]:
        said.append("  ".join(places))
    return [*said, *idle_legend(simulation)]


def _places(schedule: Schedule, kind: Kind) -> Iterator[str]:
    """What tells chunks and pipes apart, where there are several."""
    placement, last = schedule.placement, len(SHADES[kind]) - 1
    if placement.num_chunks > 1:
        for chunk in range(min(placement.num_chunks, last + 1)):
            more = " and more" if chunk == last < placement.num_chunks - 1 else ""
            yield _paint(kind, f"chunk {chunk}{more}", chunk=chunk)
    if placement.num_pipes > 1:
        yield _paint(kind, "odd pipes", pipe=1)


def _paint(kind: Kind, text: str, *, chunk: int = 0, pipe: int = 0) -> str:
    shade = SHADES[kind][min(chunk, len(SHADES[kind]) - 1)]
    underlined = "4;" if pipe % 2 else ""
    return f"\x1b[{underlined}38;5;{TEXT};48;5;{shade}m{text}{RESET}"
