"""A tick table as a grid: one column a tick, one row a rank, and the way of one microbatch through it.

unembed                                |0|
embed    |0|
rank 0   |F0|                       |B0|
rank 1       |F0|               |B0|
head             ...
"""

from collections.abc import Iterator

from jaxpipe.lowering import TickTable
from jaxpipe.lowering.table import NONE
from jaxpipe.pictures.elements import group, rect, text
from jaxpipe.pictures.legend import Item
from jaxpipe.pictures.svg import EDGE
from jaxpipe.pictures.timeline import BOX
from jaxpipe.schedules import Action, Kind
from tick_pictures.frame import (
    COLUMN,
    HEAD,
    arrow,
    draw_action,
    draw_legend,
    draw_ticks,
    kind_items,
    page,
    shade_of,
    width_of,
    x_at,
    x_of,
)
from tick_pictures.lives import Hop, action_at, hops, tick_of

ROW, END_ROW, END_BOX = 44.0, 24.0, 16.0
"""Heights of a rank's row, of a row of the ends, and of the boxes in it."""
END_SHARE = 0.5
"""How much of a tick's column a box of the ends takes: they come first in a tick."""
LANE = 8.0
"""How far from its receiver's boxes a message waits."""


def draw_grid(table: TickTable, microbatch: int) -> str:
    """The text of a file."""
    actions = {
        (tick, rank): action_at(table, tick, rank)
        for tick in range(table.num_ticks)
        for rank in range(table.placement.num_ranks)
    }
    shades = {shade_of(action, table.placement) for action in actions.values() if action}
    kinds = [kind for kind in Kind if any(shade.kind is kind for shade in shades)]
    items = [*kind_items(kinds, table.placement), Item("idle", "idle dependency")]
    items += [
        Item("end of the pipe, all ranks together", "end"),
        Item(f"microbatch {microbatch}", "cell chosen"),
    ]
    legend, below = draw_legend(items, HEAD)
    top = below + 34
    tops = _tops(table.placement.num_ranks, top)
    parts = [*legend, *draw_ticks(table.num_ticks, top=top, bottom=tops["head"] + END_ROW)]
    for (tick, rank), action in actions.items():
        chosen = action is not None and action.microbatch == microbatch and action.kind is not Kind.W
        box = draw_action(action, table.placement, tick, top=tops[f"rank {rank}"], chosen=chosen)
        parts.append(box)
    for name, row_top in tops.items():
        parts.append(text(EDGE, row_top + (14 if name.startswith("rank") else 12), name, css="label"))
    for name in ("unembed", "embed", "head"):
        parts += _draw_end(table, name, microbatch, top=tops[name])
    parts += (_draw_hop(hop, tops) for hop in hops(table, microbatch))
    parts += _draw_ways_to_ends(table, microbatch, tops)
    title = f"{table.name}: {table.num_ticks} ticks, and the way of microbatch {microbatch}"
    size = width_of(table.num_ticks), tops["head"] + END_ROW + EDGE
    return page(title, parts, shades=sorted(shades), size=size)


def _tops(num_ranks: int, top: float) -> dict[str, float]:
    """Where the boxes of each row begin."""
    first = top + 2 * END_ROW + 12
    ranks = {f"rank {rank}": first + ROW * rank for rank in range(num_ranks)}
    return {"unembed": top + 6, "embed": top + 6 + END_ROW, **ranks, "head": first + ROW * num_ranks}


def _draw_end(table: TickTable, name: str, microbatch: int, *, top: float) -> Iterator[str]:
    for tick, found in enumerate(getattr(table.ends, name)[:, 0].tolist()):
        if found != NONE:
            width = COLUMN * END_SHARE
            box = rect(x_of(tick) + 1, top, width, END_BOX)
            label = text(x_of(tick) + 1 + width / 2, top + 12, str(found), css="label")
            css = "end chosen" if found == microbatch else "end"
            yield group(css, f"{name} of microbatch {found}, tick {tick}", box, label)


def _draw_hop(hop: Hop, tops: dict[str, float]) -> str:
    """From the sender's box to the receiver's lane when it arrives, and along it until it is read."""
    sender, receiver = tops[f"rank {hop.sender}"], tops[f"rank {hop.receiver}"]
    down = receiver > sender
    start = sender if receiver < sender else sender + BOX
    lane, end = (receiver - LANE, receiver) if down else (receiver + BOX + LANE, receiver + BOX)
    arrived, read = x_at(hop.life.written), x_of(hop.life.read.tick + 0.5)
    return arrow((x_of(hop.life.written.tick + 0.5), start), (arrived, lane), (read, lane), (read, end))


def _draw_ways_to_ends(table: TickTable, microbatch: int, tops: dict[str, float]) -> Iterator[str]:
    """Into the first stage, through the head, and out of the first stage; on ranks that hold these stages."""
    ends = {
        name: column[:, 0].tolist().index(microbatch)
        for name, column in table.ends._asdict().items()
        if name in ("embed", "head", "unembed")
    }
    middle = COLUMN * END_SHARE / 2 + 1
    first, last = (table.placement.rank(stage) for stage in (0, table.placement.num_stages - 1))
    above, below = tops[f"rank {first}"], tops[f"rank {last}"] + BOX
    gradient = Action(Kind.B, table.placement.num_stages - 1, microbatch)
    x = x_of(ends["embed"])
    yield arrow((x + middle, tops["embed"] + END_BOX), (x + COLUMN / 2, above))
    x = x_of(ends["head"])
    yield arrow((x - COLUMN / 2, below), (x + middle - 3, tops["head"]))
    read = x_of(tick_of(table, gradient) + 0.6)
    yield arrow((x + middle + 3, tops["head"]), (read, below))
    x = x_of(ends["unembed"])
    yield arrow((x - COLUMN / 2, above), (x + middle, tops["unembed"] + END_BOX))
