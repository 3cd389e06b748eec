"""What colours, shades, bars and hatches mean; only what occurs in the picture."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxpipe.pictures.colors import Shade
from jaxpipe.pictures.elements import rect
from jaxpipe.pictures.labels import KINDS
from jaxpipe.pictures.timed import Timed
from jaxpipe.pictures.timeline import BOX, causes_of, draw_bars, shade_of
from jaxpipe.schedules import Cause, Kind

SAMPLE = 26.0
"""Width of a sample; it is as high as a box."""

_CAUSES = {
    Cause.DEPENDENCY: "idle: an input is being computed",
    Cause.TRANSFER: "idle: an input travels",
    Cause.NEIGHBOR: "idle: waits for the neighbours' tick",
    Cause.IMBALANCE: "idle: a neighbour's action takes longer",
    Cause.ENDS: "idle: others are not yet at the embedding or head",
    Cause.DRAIN: "idle: has ended",
    Cause.OVERHEAD: "idle: what a tick costs besides",
}


class Item(NamedTuple):
    """A sample, drawn as a box of that class (and pipe), and what it means."""

    text: str
    css: str
    pipe: int = 0


def legend(compared: Sequence[Timed]) -> list[Item]:
    """In the order in which one reads a picture."""
    used = shades_of(compared)
    kinds = [kind for kind in Kind if any(shade.kind is kind for shade in used)]
    items = [Item(f"{kind} {KINDS[kind]}", _full(kind, used)) for kind in kinds]
    items += _chunk_items(used)
    pipes = range(1, max(timed.schedule.placement.num_pipes for timed in compared))
    items += [Item(f"pipe {pipe}", _full(kinds[0], used), pipe) for pipe in pipes if pipe < 4]
    if any(timed.simulation.ends_of(0) for timed in compared):
        items.append(Item("embedding or head, all ranks together", "shared"))
    found = {cause for timed in compared for cause in causes_of(timed)}
    items += [Item(_CAUSES[cause], f"idle {cause}") for cause in Cause if cause in found]
    if not all(timed.schedule.is_forward_only for timed in compared):
        items.append(Item("activations held until B (peak: first number)", "held held-b-sample"))
        items.append(Item("until W (second)", "held held-w-sample"))
    return items


def draw_sample(item: Item, left: float, top: float) -> str:
    """A box of the item's kind."""
    bars = "".join(draw_bars(item.pipe, left, left + SAMPLE, top=top))
    return f'<g class="{item.css}">{rect(left, top, SAMPLE, BOX)}{bars}</g>'


def shades_of(compared: Sequence[Timed]) -> set[Shade]:
    """All colours that the boxes have."""
    return {shade_of(action, timed) for timed in compared for _, action in timed.schedule.actions()}


def _chunk_items(used: set[Shade]) -> Iterator[Item]:
    """The two ends of the longest row of shades."""
    most = max(shade.num_chunks for shade in used)
    if most > 1:
        kind = min(shade.kind for shade in used if shade.num_chunks == most)
        yield Item("first chunk", f"box {kind} {Shade(kind, 0, most).css}")
        yield Item("last chunk", f"box {kind} {Shade(kind, most - 1, most).css}")


def _full(kind: Kind, used: set[Shade]) -> str:
    shade = min(shade for shade in used if shade.kind is kind)
    return f"box {kind} {shade.css}"
