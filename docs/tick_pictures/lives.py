"""What a tick table says of values: where each waits, from which moment to which, and how it came there.

All of it is read from the table's columns, as the executor does, and not from what the lowering knew.
"""

from collections.abc import Iterator
from typing import NamedTuple

from jaxpipe.lowering.replay import KINDS, READS, WRITES
from jaxpipe.lowering.slots import Moment, Phase
from jaxpipe.lowering.table import NONE, TickTable
from jaxpipe.schedules import Action

BUFFERS = {
    "inbox": "inbox_read",
    "residuals": "residual_slot",
    "linear inputs": "input_slot",
    "weight inputs": "weight_slot",
}
"""The column that names a buffer's slots."""


class Life(NamedTuple):
    """A value in a slot, from the moment it is written to the moment ``reader`` reads it."""

    buffer: str
    slot: int
    written: Moment
    read: Moment
    reader: Action


class Hop(NamedTuple):
    """A message that its receiver keeps."""

    sender: int
    receiver: int
    life: Life


def num_slots(table: TickTable, buffer: str) -> int:
    """As many as every rank has, the trash not counted."""
    counts = (table.num_inbox_slots, table.num_residual_slots, table.num_input_slots, table.num_weight_slots)
    return dict(zip(BUFFERS, counts, strict=True))[buffer]


def action_at(table: TickTable, tick: int, rank: int) -> Action | None:
    """What a rank does in a tick; None where it is idle."""
    kind, pipe, chunk, microbatch = (int(column[tick, rank]) for column in table.ranks[:4])
    if kind not in KINDS:
        return None
    return Action(KINDS[kind], table.placement.stage(rank, chunk, pipe), microbatch, pipe)


def tick_of(table: TickTable, action: Action) -> int:
    """When an action runs."""
    rank = table.placement.rank(action.stage, action.pipe)
    return next(tick for tick in range(table.num_ticks) if action_at(table, tick, rank) == action)


def lives(table: TickTable, rank: int) -> list[Life]:
    """All values that ever wait on a rank, in the order in which they are read."""
    written: dict[tuple[str, int], Moment] = {}
    found = []
    for tick in range(table.num_ticks):
        written |= {("inbox", slot): Moment(tick, Phase.ENDS) for slot in _filled_by_ends(table, tick, rank)}
        if action := action_at(table, tick, rank):
            code, now = int(table.ranks.kind[tick, rank]), Moment(tick, Phase.ACTION)
            for buffer, column in BUFFERS.items():
                slot = int(getattr(table.ranks, column)[tick, rank])
                if column in READS[code]:
                    found.append(Life(buffer, slot, written[buffer, slot], now, action))
                elif column in WRITES[code] and slot < num_slots(table, buffer):
                    written[buffer, slot] = now
        for _, slot in arrivals(table, tick, rank):
            written["inbox", slot] = Moment(tick, Phase.ARRIVAL)
    return found


def hops(table: TickTable, microbatch: int) -> Iterator[Hop]:
    """The way of a microbatch through the pipe, as far as it goes by messages."""
    for rank in range(table.placement.num_ranks):
        for life in lives(table, rank):
            if life.reader.microbatch == microbatch and life.written.phase is Phase.ARRIVAL:
                arrived = arrivals(table, life.written.tick, rank)
                sender = next(sender for sender, slot in arrived if slot == life.slot)
                yield Hop(sender, rank, life)


def arrivals(table: TickTable, tick: int, rank: int) -> list[tuple[int, int]]:
    """Sender and slot of each message that is kept."""
    num_ranks, columns = table.placement.num_ranks, table.ranks
    found = (
        ((rank - 1) % num_ranks, int(columns.from_below[tick, rank])),
        ((rank + 1) % num_ranks, int(columns.from_above[tick, rank])),
        (rank, int(columns.from_self[tick, rank])),
    )
    return [(sender, slot) for sender, slot in found if slot != table.num_inbox_slots]


def is_used(table: TickTable, sender: int, *, receiver: int) -> bool:
    """Whether any message of the whole step is kept on that way; the executor leaves the others out."""
    return any(sender in dict(arrivals(table, tick, receiver)) for tick in range(table.num_ticks))


def _filled_by_ends(table: TickTable, tick: int, rank: int) -> Iterator[int]:
    placement, ends = table.placement, table.ends
    for pipe in range(placement.num_pipes):
        for microbatch, slot, stage in (
            (ends.head, ends.head_slot, placement.num_stages - 1),
            (ends.embed, ends.embed_slot, 0),
        ):
            if placement.rank(stage, pipe) == rank and microbatch[tick, pipe] != NONE:
                yield int(slot[tick, pipe])
