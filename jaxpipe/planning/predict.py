"""How long a step takes: the ticks of the lowered program at given costs, and what is done once a step.

The ticks are timed as ``simulate(sync="neighbor")`` does: what a rank does in a tick begins when its own last
tick and those of its neighbours ``transfer_ticks`` before have ended; before an end of the pipe all wait for
all. Two things more: each tick costs something by itself, and devices that share cores slow each other down;
since their messages are no hardware's either, all of them meet in every tick.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxpipe.planning.layouts import Layout, Task
from jaxpipe.planning.part_seconds import PartSeconds
from jaxpipe.planning.sizes import stage_layers
from jaxpipe.planning.tick_rows import Row, Rows, rows_of

_SPLIT_W_FOLLOWS = frozenset({"gpipe", "1f1b", "interleaved", "looped_bfs"})
"""Schedules of one pipe in which W follows its B at once: B of all stages are on the way to the end."""

_NO_DIFFERENCE = 0.0005


class StepTime(NamedTuple):
    """Seconds of a step.

    ticks: from the first tick to the end of the last.
    work: of it the actions and ends of the rank that has most of them, as slow as while all devices act;
        ``recomputation``, ``tensor`` (talk between the devices of a rank), ``shards`` (of ZeRO's talk) and
        ``ends`` are parts of it.
    once: before and after the ticks: weights, sums over ``dp``, the optimizer; ``reduction`` is a part.
    """

    ticks: float
    work: float
    recomputation: float
    tensor: float
    shards: float
    ends: float
    once: float
    reduction: float

    @property
    def total(self) -> float:
        return self.ticks + self.once

    @property
    def bubble(self) -> float:
        """The share of the ticks that is lost by waiting.

        Of devices with hardware of their own it is how long the busiest rank waits. Where they share cores, a
        rank that waits leaves its cores to the others, and waiting that idles no core costs nothing.
        """
        return max(1 - self.work / self.ticks, 0.0)


def is_as_fast(one: StepTime, other: StepTime) -> bool:
    """Whether they are the same in a tenth of a percent, which is what is printed."""
    return abs(one.total / other.total - 1) < _NO_DIFFERENCE


def predict(task: Task, layout: Layout, parts: PartSeconds) -> StepTime:
    """The time of a step of ``layout``."""
    rows, layers = rows_of(layout), stage_layers(task, layout)
    seconds = {
        (kind, stage): line.at(count)
        for kind, line in parts.actions.items()
        for stage, count in enumerate(layers)
    }
    copies = layout.dp * layout.tp
    ticks = _time(rows, seconds, parts, copies=copies, transfer_ticks=layout.transfer_ticks)
    ends = _all_ends(parts) * layout.num_microbatches * parts.slowed(copies * layout.pp)
    slowest = parts.slowed(copies * layout.pp)
    works = [
        sum(seconds[key] * times for key, times in counts.items()) * slowest + ends for counts in rows.counts
    ]
    share = layout.num_microbatches * task.model.num_hidden_layers / layout.pp
    return StepTime(
        ticks=ticks,
        work=min(max(works), ticks),
        recomputation=parts.recomputation * share,
        tensor=parts.tensor * share,
        shards=parts.shards * share,
        ends=ends,
        once=_once(layout, parts),
        reduction=parts.reduction,
    )


def least_seconds(task: Task, layout: Layout, parts: PartSeconds) -> float:
    """What no order of such a layout takes less than, by formula: to be asked of all of them."""
    layers, m, p = task.model.num_hidden_layers, layout.num_microbatches, layout.pp
    actions = {
        kind: line.fixed * layout.num_chunks + line.each * layers / p for kind, line in parts.actions.items()
    }
    apart = actions["F"] + actions["B"] + actions["W"]
    together = actions["F"] + actions["BW"]
    work = m * (min(apart, together) if layout.fuse_backward else apart)
    num_devices = layout.dp * p * layout.tp
    slowed = num_devices * min(parts.slowed(count) / count for count in range(1, num_devices + 1))
    stage_f, stage_b = (
        parts.actions[kind].fixed + parts.actions[kind].each * (layers // layout.num_stages)
        for kind in ("F", "B")
    )
    fill = (p - 1) * stage_f if layout.schedule not in ("chimera", "dualpipe") else (p // 2 - 1) * stage_f
    if layout.schedule in _SPLIT_W_FOLLOWS and p > 1:
        fill = (p - 1) * (stage_f + stage_b)
    num_ticks = m * layout.num_chunks * (2 if layout.fuse_backward else 3)
    ends = _all_ends(parts) * m * slowed
    busy = max(work * slowed, work + fill)
    return busy + ends + parts.tick * num_ticks + _once(layout, parts)


def _all_ends(parts: PartSeconds) -> float:
    return parts.head + parts.embedding + parts.unembedding


def _once(layout: Layout, parts: PartSeconds) -> float:
    slowed = parts.slowed(layout.dp * layout.pp * layout.tp)
    return parts.before + parts.reduction + parts.update * slowed


def _time(
    rows: Rows,
    seconds: Mapping[tuple[str, int], float],
    parts: PartSeconds,
    *,
    copies: int,
    transfer_ticks: int,
) -> float:
    """The end of the last tick; each rank is ``copies`` devices, which all do the same."""
    num_ranks = rows.placement.num_ranks
    around = [((rank - 1) % num_ranks, (rank + 1) % num_ranks) for rank in range(num_ranks)]
    slowed = parts.slowed(copies * num_ranks)
    ended = [[0.0] * num_ranks for _ in range(transfer_ticks)]
    for number, row in enumerate(rows.rows):
        travel = parts.transfer if number >= transfer_ticks else 0.0  # nothing is on its way before
        own, others = ended[-1], ended[0]
        times = [
            max(own[rank], others[below] + travel, others[above] + travel) if num_ranks > 1 else own[0]
            for rank, (below, above) in enumerate(around)
        ]
        share = _ends_of(row, parts)
        if share or not parts.has_own_hardware:
            times = [max(times) + share * slowed] * num_ranks
        for rank, duration in _durations(row, seconds, parts, copies=copies):
            times[rank] += duration
        ended = [*ended[1:], [time + parts.tick for time in times]]
    return max(ended[-1])


def _ends_of(row: Row, parts: PartSeconds) -> float:
    return row.embeddings * parts.embedding + row.heads * parts.head + row.unembeddings * parts.unembedding


def _durations(
    row: Row, seconds: Mapping[tuple[str, int], float], parts: PartSeconds, *, copies: int
) -> Sequence[tuple[int, float]]:
    """How long each acting rank takes: the shorter actions end first, and then the others have the cores."""
    alone = [(seconds[kind, stage], rank) for rank, kind, stage in row.acts]
    if parts.has_own_hardware:
        return [(rank, duration) for duration, rank in alone]
    durations, passed, done = [], 0.0, 0.0
    for number, (duration, rank) in enumerate(sorted(alone)):
        passed += (duration - done) * parts.slowed(copies * (len(alone) - number))
        done = duration
        durations.append((rank, passed))
    return durations
