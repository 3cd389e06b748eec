"""Parts of a tick table that can be programs of their own, made of only what their ticks need.

    tick     0   1   2   3   4 | 5 6   7 8   9 10 | 11  12  13
    segment  a   b   c   d   e |  f (3 periods)   |  g   h   i

One scan over all rows needs every kind of action, both messages and both ends of the pipe in every tick: what
a row does not use has zero trips or goes to the trash slot, but a message that nobody needs still makes
neighbours wait for each other. A segment repeats a period of rows: its rows, modulo the period, use the same
kinds, the same hops and the same ends. Warm-up and drain become segments of one row, the steady state of most
schedules one long segment.
"""

from dataclasses import dataclass

import numpy as np

from jaxpipe.lowering.table import NONE, TickTable

LONGEST_PERIOD = 64
"""Rows; a schedule whose steady state repeats later becomes single rows."""

Hops = tuple[tuple[int, int], ...]
"""Pairs of ranks, sender first."""


@dataclass(frozen=True)
class TickUse:
    """What a row of the table uses, of all ranks together.

    kinds: of actions. up, down: who sends to whom; with ``transfer_ticks=2`` what the tick before computed.
    to_self: whether some rank keeps its own message. embed, head, unembed: the pipes whose ends these are.
    """

    kinds: frozenset[int]
    up: Hops
    down: Hops
    to_self: bool
    embed: frozenset[int]
    head: frozenset[int]
    unembed: frozenset[int]


@dataclass(frozen=True)
class Segment:
    """Rows from ``start`` to before ``stop``; the one at ``start + k`` uses ``uses[k % len(uses)]``."""

    start: int
    stop: int
    uses: tuple[TickUse, ...]

    @property
    def period(self) -> int:
        return len(self.uses)


def whole(table: TickTable) -> tuple[Segment, ...]:
    """One segment of period 1: every row uses what any row does."""
    return (Segment(0, table.num_ticks, (_use(table, slice(None)),)),)


def specialised(table: TickTable) -> tuple[Segment, ...]:
    """The fewest segments that a walk from the first row finds, taking the longest repetition each time."""
    uses = [_use(table, slice(tick, tick + 1)) for tick in range(table.num_ticks)]
    number = {use: index for index, use in enumerate(dict.fromkeys(uses))}
    rows = np.array([number[use] for use in uses])
    segments = []
    start = 0
    while start < len(rows):
        period, stop = _longest_repetition(rows, start)
        segments.append(Segment(start, stop, tuple(uses[start : start + period])))
        start = stop
    return tuple(segments)


def _longest_repetition(rows: np.ndarray, start: int) -> tuple[int, int]:
    """The period and the end of what repeats most rows from ``start``; a single row if nothing does."""
    best = 1, start + 1
    for period in range(1, min(LONGEST_PERIOD, (len(rows) - start) // 2) + 1):
        differs = np.flatnonzero(rows[start + period :] != rows[start:-period])
        repeated = int(differs[0]) if len(differs) else len(rows) - start - period
        stop = start + period * (1 + repeated // period)
        if repeated >= period and stop > best[1]:
            best = period, stop
    return best


def _use(table: TickTable, rows: slice) -> TickUse:
    ranks, ends, num_ranks = table.ranks, table.ends, table.placement.num_ranks

    def receivers(column: np.ndarray) -> list[int]:
        return [rank for rank in range(num_ranks) if np.any(column[rows, rank] != table.num_inbox_slots)]

    def pipes(column: np.ndarray) -> frozenset[int]:
        return frozenset(np.flatnonzero(np.any(column[rows] != NONE, axis=0)).tolist())

    return TickUse(
        kinds=frozenset(np.unique(ranks.kind[rows]).tolist()),
        up=tuple(((rank - 1) % num_ranks, rank) for rank in receivers(ranks.from_below)),
        down=tuple(((rank + 1) % num_ranks, rank) for rank in receivers(ranks.from_above)),
        to_self=bool(receivers(ranks.from_self)),
        embed=pipes(ends.embed),
        head=pipes(ends.head),
        unembed=pipes(ends.unembed),
    )
