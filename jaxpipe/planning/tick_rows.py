"""What happens in each tick of a lowered schedule, once for all costs: who acts, and which ends meet.

As many layouts run the same schedule at other costs, this is kept and timed again and again (predict.py).
Slots are counted as the lowering allocates them. But for the inbox's, the order alone settles them, so most
layouts are found to be too large without ticks.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from jaxpipe.planning.layouts import Layout
from jaxpipe.schedules import (
    Action,
    Kind,
    Placement,
    Schedule,
    assign_ticks,
    build,
    fuse_backward,
    peak_held,
    split_backward,
)
from jaxpipe.schedules.dependencies import inputs, result


class Act(NamedTuple):
    """An action of a rank in a tick."""

    rank: int
    kind: str
    stage: int


class Row(NamedTuple):
    """A tick: who acts, and how many microbatches are at each end of the pipe at its start."""

    acts: tuple[Act, ...]
    embeddings: int
    heads: int
    unembeddings: int


class Slots(NamedTuple):
    """The most that a rank holds at once: of messages, of what F leaves for B and for W, and B for W."""

    inbox: int
    residuals: int
    inputs: int
    weights: int


class Rows(NamedTuple):
    """The ticks of a schedule; ``counts[rank]`` says how often it does which kind on which stage."""

    placement: Placement
    rows: tuple[Row, ...]
    inbox: int
    counts: tuple[Mapping[tuple[str, int], int], ...]


class _Order(NamedTuple):
    """What settles the order of a program."""

    name: str
    num_ranks: int
    num_microbatches: int
    num_chunks: int
    fuses: bool


def rows_of(layout: Layout) -> Rows:
    """The rows of a layout's program."""
    return _rows(_order_of(layout), layout.transfer_ticks)


def slots_of(layout: Layout) -> Slots:
    """What the order settles; of the inbox the least that there can be."""
    return _slots(_order_of(layout))


def all_slots_of(layout: Layout) -> Slots:
    """Those of the inbox, too, for which the ticks are needed."""
    return slots_of(layout)._replace(inbox=rows_of(layout).inbox)


def _order_of(layout: Layout) -> _Order:
    return _Order(
        layout.schedule, layout.pp, layout.num_microbatches, layout.num_chunks, layout.fuse_backward
    )


@lru_cache(maxsize=256)
def _schedule(name: str, num_ranks: int, num_microbatches: int, num_chunks: int) -> Schedule:
    return build(name, num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks)


def _program(order: _Order) -> Schedule:
    schedule = _schedule(*order[:-1])
    return fuse_backward(schedule) if order.fuses else split_backward(schedule)


@lru_cache(maxsize=512)
def _rows(order: _Order, transfer_ticks: int) -> Rows:
    program = _program(order)
    ticks = assign_ticks(program, transfer_ticks)
    placement = program.placement
    last = placement.num_stages - 1
    acts: defaultdict[int, list[Act]] = defaultdict(list)
    ends: dict[str, Counter[int]] = {name: Counter() for name in ("embedding", "head", "unembedding")}
    for rank, action in program.actions():
        tick = ticks[action]
        acts[tick].append(Act(rank, str(action.kind), action.stage))
        if action.kind is Kind.F and action.stage == 0:
            ends["embedding"][tick] += 1
        if action.kind is Kind.F and action.stage == last:
            ends["head"][tick + 1] += 1
        if action.kind in (Kind.B, Kind.BW) and action.stage == 0:
            ends["unembedding"][tick + 1] += 1
    num_ticks = 1 + max(*acts, *ends["head"], *ends["unembedding"])
    rows = tuple(Row(tuple(acts[tick]), *(ends[name][tick] for name in ends)) for tick in range(num_ticks))
    counts = tuple(Counter((str(action.kind), action.stage) for action in order) for order in program.orders)
    return Rows(placement, rows, _inbox(program, ticks, transfer_ticks=transfer_ticks), counts)


@lru_cache(maxsize=4096)
def _slots(order: _Order) -> Slots:
    program = _program(order)
    return Slots(
        inbox=1,
        residuals=max(peak_held(program, Kind.B)),
        inputs=max(peak_held(program, Kind.W)),
        weights=_waiting_for_weights(program),
    )


def _waiting_for_weights(program: Schedule) -> int:
    most = 0
    for order in program.orders:
        waiting = 0
        for action in order:
            waiting += (action.kind is Kind.B) - (action.kind is Kind.W)
            most = max(most, waiting)
    return most


def _inbox(program: Schedule, ticks: Mapping[Action, int], *, transfer_ticks: int) -> int:
    """Messages that wait on a rank: each from the end of the tick in which it arrives to its action."""
    placement = program.placement
    done = {result(action): tick for action, tick in ticks.items()}
    changes: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for action, tick in done.items():
        rank = placement.rank(action.stage, action.pipe)
        if action.kind is Kind.W:
            continue
        if action.kind is Kind.F and action.stage == 0:
            arrives = tick
        elif action.kind is Kind.B and action.stage == placement.num_stages - 1:
            arrives = done[action._replace(kind=Kind.F)] + 1
        else:
            source = inputs(action, placement.num_stages)[-1]
            is_own = placement.rank(source.stage, source.pipe) == rank
            arrives = done[source] + (1 if is_own else transfer_ticks)
        changes[rank][arrives] += 1
        changes[rank][tick + 1] -= 1
    most = 0
    for of_rank in changes.values():
        held = 0
        for tick in sorted(of_rank):
            held += of_rank[tick]
            most = max(most, held)
    return most
