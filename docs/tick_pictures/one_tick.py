"""One tick on all ranks: the ends of the pipe, then each rank's action, then the messages.

1 ends       unembed 0 | head 2 | no embed
2 action     W0    B1    F3    B2       with the slots that each reads and fills
3 messages     <---   --->   <---       and what then lies in the inbox
"""

from collections.abc import Iterator, Sequence

from jaxpipe.lowering import TickTable
from jaxpipe.lowering.slots import Moment, Phase
from jaxpipe.lowering.table import NONE
from jaxpipe.pictures.elements import group, rect, text
from jaxpipe.pictures.labels import KINDS
from jaxpipe.pictures.legend import Item
from jaxpipe.pictures.svg import EDGE
from jaxpipe.schedules import Action, Kind
from tick_pictures.frame import HEAD, WIDTH, arrow, draw_legend, page, shade_of
from tick_pictures.lives import BUFFERS, Life, action_at, arrivals, is_used, lives, num_slots

CELL, LINE, TITLE, GAP = 18.0, 24.0, 28.0, 16.0
"""Heights of a slot, of a line, of a phase's title, and between phases."""
INSET = 14.0
"""Pixels between a phase's edge and what is in it."""
NAMES = 88.0
"""Pixels for a buffer's name, before its slots."""
LANE = 30.0
"""Height of the messages of one direction."""

ENDS_HEIGHT = TITLE + 3 * LINE + 10
ACTION_HEIGHT = TITLE + LINE * (len(BUFFERS) + 1) + 46
MESSAGES_HEIGHT = TITLE + 2 * LANE + LINE + 22


def draw_tick(table: TickTable, tick: int) -> str:
    """The text of a file; each rank has a column.

    Only with one chunk a rank: with several, messages go from the last rank to the first, off the picture.
    """
    assert table.placement.num_chunks == 1, f"{table.name} has several chunks"
    actions = [action_at(table, tick, rank) for rank in range(table.placement.num_ranks)]
    shades = sorted({shade_of(action, table.placement) for action in actions if action})
    items = [
        Item("read now by the action of that colour, then free", f"box {shades[0].kind} {shades[0].css}"),
        Item("filled now", "cell written"),
        Item("with a number: waits on; without: free", "cell"),
    ]
    legend, below = draw_legend(items, HEAD)
    ends = below + GAP
    action = ends + ENDS_HEIGHT + GAP
    messages = action + ACTION_HEIGHT + GAP
    bottom = messages + MESSAGES_HEIGHT
    parts = [
        *legend,
        *_panel("1  Ends of the pipe: all ranks together", ends, height=ENDS_HEIGHT),
        *_panel("2  Action: each rank its own", action, height=ACTION_HEIGHT),
        *_panel("3  Messages: each rank hears its neighbours", messages, height=MESSAGES_HEIGHT),
        *_draw_ends(table, tick, top=ends + TITLE),
        *_draw_actions(table, tick, top=action + TITLE),
        *_draw_messages(table, tick, top=messages + TITLE),
        _draw_gradient_of_head(table, tick, top=ends + TITLE + LINE + CELL + 2, bottom=action + TITLE + LINE),
    ]
    title = f"{table.name}: what tick {tick} does on {table.placement.num_ranks} ranks"
    return page(title, parts, shades=shades, size=(WIDTH, bottom + EDGE))


def _panel(title: str, top: float, *, height: float) -> Iterator[str]:
    yield rect(EDGE, top, WIDTH - 2 * EDGE, height, css="panel")
    yield text(EDGE + INSET, top + 19, title, css="title")


def _draw_ends(table: TickTable, tick: int, *, top: float) -> Iterator[str]:
    first, last = table.placement.rank(0), table.placement.rank(table.placement.num_stages - 1)
    ends = table.ends
    said = {
        "unembed": f"what rank {first} computed in tick {tick - 1} goes into the gradient of the embedding",
        "head": f"what rank {last} computed in tick {tick - 1} gives the loss, and a gradient "
        f"for inbox slot {ends.head_slot[tick, 0]} of rank {last}",
        "embed": f"its embeddings go into inbox slot {ends.embed_slot[tick, 0]} of rank {first}",
    }
    for row, (name, does) in enumerate(said.items()):
        microbatch = int(getattr(ends, name)[tick, 0])
        content = (
            f"{name}: nothing in this tick"
            if microbatch == NONE
            else f"{name}, microbatch {microbatch}: {does}"
        )
        y = top + LINE * row
        yield f'<g class="cell">{rect(EDGE + INSET, y, WIDTH - 2 * (EDGE + INSET), LINE - 4)}</g>'
        yield text(EDGE + INSET + 8, y + 14, content, css="muted" if microbatch == NONE else "label")


def _draw_actions(table: TickTable, tick: int, *, top: float) -> Iterator[str]:
    now = Moment(tick, Phase.ACTION)
    for rank in range(table.placement.num_ranks):
        left, waiting = _left(table, rank), lives(table, rank)
        yield text(left, top + 13, f"rank {rank}", css="title")
        action = action_at(table, tick, rank)
        below = top + 2 * LINE + 34
        yield _draw_action(table, action, tick, left=left, top=top + 2 * LINE + 2)
        for buffer, row_top in zip(BUFFERS, (top + LINE, below, below + LINE, below + 2 * LINE), strict=True):
            yield text(left, row_top + 13, buffer, css="muted")
            yield from _draw_buffer(table, waiting, buffer, now, left=left, top=row_top)


def _draw_action(table: TickTable, action: Action | None, tick: int, *, left: float, top: float) -> str:
    box = rect(left, top, _width(table) - INSET, 24)
    middle = left + (_width(table) - INSET) / 2
    if action is None:
        return group("idle dependency", f"idle in tick {tick}", box)
    label = text(middle, top + 16, f"{action}: {KINDS[action.kind]}", css="label")
    return group(
        f"box {action.kind} {shade_of(action, table.placement).css}", f"{action}, tick {tick}", box, label
    )


def _draw_buffer(
    table: TickTable, waiting: Sequence[Life], buffer: str, now: Moment, *, left: float, top: float
) -> Iterator[str]:
    """The slots of a buffer in a moment, each with the microbatch in it."""
    for slot in range(num_slots(table, buffer)):
        x = left + NAMES + CELL * 1.2 * slot
        box = rect(x, top, CELL, CELL)
        there = [life for life in waiting if (life.buffer, life.slot) == (buffer, slot)]
        life = next((life for life in there if life.written <= now <= life.read), None)
        if life is None:
            yield group("cell", f"{buffer} slot {slot}: free", box)
            continue
        label = text(x + CELL / 2, top + 13, str(life.reader.microbatch), css="label")
        css = "cell"
        if life.read == now:
            css = f"box {life.reader.kind} {shade_of(life.reader, table.placement).css}"
        elif life.written == now:
            css = "cell written"
        yield group(css, f"{buffer} slot {slot}: for {life.reader} in tick {life.read.tick}", box, label)


def _draw_gradient_of_head(table: TickTable, tick: int, *, top: float, bottom: float) -> str:
    """From the head to the inbox slot that it fills."""
    if table.ends.head[tick, 0] == NONE:
        return ""
    rank = table.placement.rank(table.placement.num_stages - 1)
    x = _left(table, rank) + NAMES + CELL * (1.2 * int(table.ends.head_slot[tick, 0]) + 0.5)
    return arrow((x, top), (x, bottom))


def _draw_messages(table: TickTable, tick: int, *, top: float) -> Iterator[str]:
    num_ranks = table.placement.num_ranks
    for rank in range(num_ranks):
        kept = dict(arrivals(table, tick, rank))
        for lane, sender in enumerate((rank - 1, rank + 1)):
            if 0 <= sender < num_ranks and is_used(table, sender, receiver=rank):
                y = top + LANE * lane + 20
                yield from _draw_message(table, tick, sender, receiver=rank, slot=kept.get(sender), y=y)
        now = Moment(tick, Phase.ARRIVAL)
        left, below = _left(table, rank), top + 2 * LANE + 14
        yield text(left, below + 13, f"rank {rank}, inbox", css="muted")
        yield from _draw_buffer(table, lives(table, rank), "inbox", now, left=left, top=below)


def _draw_message(
    table: TickTable, tick: int, sender: int, *, receiver: int, slot: int | None, y: float
) -> Iterator[str]:
    """An arrow between the middles of two columns; dashed where the receiver does not keep it."""
    start, end = (_left(table, rank) + (_width(table) - INSET) / 2 for rank in (sender, receiver))
    inset = 8 if end > start else -8
    action = action_at(table, tick, sender)
    name = f"of {action}" if action and action.kind in (Kind.F, Kind.B) else "nothing new"
    css, tip = ("dropped", "dropped-tip") if slot is None else ("way", "tip")
    yield arrow((start + inset, y), (end - inset, y), css=css, tip=tip)
    content = f"{name}: not kept" if slot is None else f"{name}: slot {slot}"
    label_css = "muted" if slot is None else "label"
    yield text((start + end) / 2, y - 5, content, css=label_css, anchor="middle")


def _width(table: TickTable) -> float:
    """Of a rank's column."""
    return (WIDTH - 2 * EDGE - INSET) / table.placement.num_ranks


def _left(table: TickTable, rank: int) -> float:
    return EDGE + INSET + _width(table) * rank
