"""A measured step as what the simulator gives: when each action ran, and why ranks were idle.

Each rank's time, from the first mark of any rank to the last, falls into stretches that leave no gap:

    its action                                      work
    what all ranks do together at the ends          work, from when the last rank is there
    until the last rank is there                    idle
    the exchange, until the last neighbour is there idle
    the exchange itself, from then on               idle
    the rest: a tick without action, the marks      idle

Why it is idle: as long as an input of its next action is being computed elsewhere, that is why, whatever it
waits at. What is left is the exchange itself (transfer), a neighbour that has an action longer than its own
in this tick (imbalance) or came later to it (neighbor), the ends, and what a tick costs besides (overhead).
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from jaxpipe.planning.tick_file import TickTrace
from jaxpipe.schedules import Action, Cause, Idle, Kind, Simulation, peak_held
from jaxpipe.schedules.dependencies import inputs, result

Interval = tuple[float, float]


class _Piece(NamedTuple):
    """A stretch of a rank's time; ``cause`` is None where it works, ``action`` what it works on."""

    start: float
    end: float
    cause: Cause | None
    action: Action | None = None


def measured(trace: TickTrace) -> Simulation:
    """Times in seconds from the first mark."""
    schedule, origin = trace.schedule, min(marks.start for marks in trace.marks[0])
    pieces = [[*_pieces(trace, rank, origin)] for rank in range(schedule.num_ranks)]
    makespan = max(line[-1].end for line in pieces)
    start = {piece.action: piece.start for line in pieces for piece in line if piece.action}
    end = {piece.action: piece.end for line in pieces for piece in line if piece.action}
    computed = {result(action): time for action, time in end.items()}
    ends = tuple(
        tuple((piece.start, piece.end) for piece in line if piece.cause is piece.action is None)
        for line in pieces
    )
    idle = [
        stretch
        for rank, line in enumerate(pieces)
        for stretch in _idle_stretches(trace, rank, line, computed=computed, makespan=makespan)
    ]
    return Simulation(
        start=start,
        end=end,
        work=tuple(sum(piece.end - piece.start for piece in line if piece.cause is None) for line in pieces),
        idle=tuple(idle),
        ends=(),
        ends_by_rank=ends,
        makespan=makespan,
        longest_rank_span=max(end[order[-1]] - start[order[0]] for order in schedule.orders if order),
        peak_until_backward=peak_held(schedule, Kind.B),
        peak_until_weight=peak_held(schedule, Kind.W),
    )


def all_there(trace: TickTrace, tick: int) -> float:
    """When the last rank came to the ends of the pipe in this tick."""
    return max(marks.start for marks in trace.marks[tick])


def _pieces(trace: TickTrace, rank: int, origin: float) -> Iterator[_Piece]:
    """One behind the other, from 0 on; the empty ones are left out."""
    last = 0.0
    for tick in range(trace.num_ticks):
        marks = trace.marks[tick][rank]
        action = trace.actions[tick][rank]
        bounds: list[tuple[float, Cause | None, Action | None]] = [(marks.start, Cause.OVERHEAD, None)]
        if trace.ends[tick]:
            bounds.append((min(all_there(trace, tick), marks.ends), Cause.ENDS, None))
        bounds.append((marks.ends, None if trace.ends[tick] else Cause.OVERHEAD, None))
        bounds.append((marks.action, None if action else Cause.OVERHEAD, action))
        if trace.schedule.num_ranks > 1:
            bounds += _waits(trace, tick, rank)
        bounds.append(
            (marks.exchange, Cause.TRANSFER if trace.schedule.num_ranks > 1 else Cause.OVERHEAD, None)
        )
        for until, cause, done in bounds:
            until = max(until - origin, last)
            if until > last or done:
                yield _Piece(last, until, cause, done)
                last = until


def _waits(trace: TickTrace, tick: int, rank: int) -> Iterator[tuple[float, Cause, None]]:
    """The wait for the last neighbour: since it came later to its action, then for what that takes longer."""
    num_ranks, row = trace.schedule.num_ranks, trace.marks[tick]
    own = row[rank]
    last = max((row[(rank + hop) % num_ranks] for hop in (-1, 1)), key=lambda marks: marks.action)
    longer = max((last.action - last.ends) - (own.action - own.ends), 0.0)
    yield min(last.action - longer, own.exchange), Cause.NEIGHBOR, None
    yield min(last.action, own.exchange), Cause.IMBALANCE, None


def _idle_stretches(
    trace: TickTrace, rank: int, line: list[_Piece], *, computed: dict[Action, float], makespan: float
) -> Iterator[Idle]:
    """What is idle, with its cause by what comes next."""
    ready = _ready(trace, rank, line, computed)
    found: list[Idle] = []
    for piece, known in zip(line, ready, strict=True):
        if piece.cause is None:
            continue
        if known is None or known == math.inf:
            cause = Cause.DRAIN if known is None else Cause.ENDS
            found.append(Idle(rank, piece.start, piece.end, cause))
            continue
        until = min(max(known, piece.start), piece.end)
        found.append(Idle(rank, piece.start, until, Cause.DEPENDENCY))
        found.append(Idle(rank, until, piece.end, piece.cause))
    found.append(Idle(rank, line[-1].end, makespan, Cause.DRAIN))
    yield from _joined([idle for idle in found if idle.end > idle.start])


def _ready(
    trace: TickTrace, rank: int, line: list[_Piece], computed: dict[Action, float]
) -> list[float | None]:
    """For each piece, when the other ranks have computed all that its next action reads.

    None behind the last work of the rank; infinite behind its last action, as long as it has to work at the
    ends with others.
    """
    placement = trace.schedule.placement
    times: list[float | None] = []
    known: float | None = None
    for piece in reversed(line):
        if piece.action is not None:
            needs = inputs(piece.action, placement.num_stages)
            foreign = [need for need in needs if placement.rank(need.stage, need.pipe) != rank]
            known = max((computed[need] for need in foreign), default=0.0)
        elif piece.cause is None and known is None:
            known = math.inf
        times.append(known)
    return times[::-1]


def _joined(idle: list[Idle]) -> Iterator[Idle]:
    """Stretches of one cause that follow each other, as one."""
    for index, stretch in enumerate(idle):
        if index and idle[index - 1].end == stretch.start and idle[index - 1].cause is stretch.cause:
            continue
        end = stretch.end
        for following in idle[index + 1 :]:
            if following.start != end or following.cause is not stretch.cause:
                break
            end = following.end
        yield Idle(stretch.rank, stretch.start, end, stretch.cause)
