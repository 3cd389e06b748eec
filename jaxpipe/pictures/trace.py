"""A schedule as a trace that Perfetto and Chrome (``chrome://tracing``) open.

A process for the schedule, in it a track for each rank: a slice for each action and each idle stretch, an
arrow for each message to another rank, and two counters, the activations held until B and until W. A cost of
1 is a second, and the format counts microseconds. Times are rounded to whole nanoseconds before durations are
taken, so that slices which follow each other never overlap, and those of a rank fill its time.

The format is that of "Trace Event Format" (Chromium, 2016), as Perfetto reads it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxpipe.pictures.figures import heading
from jaxpipe.pictures.timed import Timed, held_by, what_follows
from jaxpipe.schedules import Action
from jaxpipe.schedules.dependencies import inputs, result

Event = dict[str, object]

PROCESS = 1
LATEST = 9e9
"""Seconds: trace viewers count nanoseconds in 64 bits."""


def chrome_trace_of_all(compared: Sequence[Timed]) -> dict[str, object]:
    """Several in one, each as a process of its own, under its title."""
    events = [
        event | ({"id": f"{process}.{event['id']}"} if "id" in event else {}) | {"pid": process}
        for process, timed in enumerate(compared, start=PROCESS)
        for event in _events(timed, timed.title)
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"schedule": heading(compared)}}


def find_trace_faults(timed: Timed) -> list[str]:
    """Times that no trace can hold."""
    makespan = timed.simulation.makespan
    if makespan <= LATEST:
        return []
    return [f"makespan={makespan:g} must be at most {LATEST:g} seconds for a trace; give smaller costs"]


def chrome_trace(timed: Timed) -> dict[str, object]:
    """Plain values for JSON."""
    events = [*_events(timed, heading([timed]))]
    simulation = timed.simulation
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "schedule": heading([timed]),
            "unit": "a cost of 1 is 1 s",
            "makespan": simulation.makespan,
            "bubble_fraction": simulation.bubble_fraction,
        },
    }


def _events(timed: Timed, name: str) -> Iterator[Event]:
    yield from _names(timed, name)
    yield from _slices(timed)
    yield from _idle_slices(timed)
    yield from _messages(timed)
    yield from _counters(timed)


def _names(timed: Timed, name: str) -> Iterator[Event]:
    yield _event("M", None, "process_name", args={"name": name})
    for rank in range(timed.schedule.num_ranks):
        yield _event("M", rank, "thread_name", args={"name": f"rank {rank}"})
        yield _event("M", rank, "thread_sort_index", args={"sort_index": rank})


def _slices(timed: Timed) -> Iterator[Event]:
    placement = timed.schedule.placement
    for rank, action in timed.schedule.actions():
        start, end = _span(action, timed)
        args = {
            "kind": str(action.kind),
            "microbatch": action.microbatch,
            "stage": action.stage,
            "chunk": placement.chunk(action.stage, action.pipe),
            "pipe": action.pipe,
        }
        yield _slice(rank, str(action), start, end, cat=str(action.kind), args=args)
    for rank in range(timed.schedule.num_ranks):
        for since, until in timed.simulation.ends_of(rank):
            start, end = _nanoseconds(since), _nanoseconds(until)
            yield _slice(rank, "embedding or head", start, end, cat="ends", args={})


def _idle_slices(timed: Timed) -> Iterator[Event]:
    """Named by their causes; those shorter than a nanosecond are none."""
    for idle in timed.simulation.idle:
        start, end = _nanoseconds(idle.start), _nanoseconds(idle.end)
        if end > start:
            args = {
                "cause": str(idle.cause),
                "seconds": idle.end - idle.start,
                "before": what_follows(idle, timed),
            }
            yield _slice(idle.rank, f"idle: {idle.cause}", start, end, cat="idle", args=args)


class _Message(NamedTuple):
    """From the end of one action to the start of another."""

    source: Action
    sender: int
    target: Action
    receiver: int


def _messages(timed: Timed) -> Iterator[Event]:
    """Each leaves in the last nanosecond of a slice, since an arrow belongs to the slice around its end."""
    for count, message in enumerate(_between_ranks(timed)):
        same = {"cat": "message", "id": count}
        name = f"{result(message.source)}"
        leaves = _microseconds(_span(message.source, timed)[1] - 1)
        yield _event("s", message.sender, name, **same, ts=leaves)
        arrives = _microseconds(_span(message.target, timed)[0])
        yield _event("f", message.receiver, name, **same, ts=arrives, bp="e")


def _between_ranks(timed: Timed) -> Iterator[_Message]:
    placement = timed.schedule.placement
    writers = {result(action): (rank, action) for rank, action in timed.schedule.actions()}
    for rank, action in timed.schedule.actions():
        for need in inputs(action, placement.num_stages):
            sender, source = writers[need]
            if sender != rank:
                yield _Message(source, sender, action, rank)


def _counters(timed: Timed) -> Iterator[Event]:
    """At each time at which they change, the last value of a nanosecond; zero where nothing is held.

    A viewer shows each of the two on a track of its own.
    """
    for rank in range(timed.schedule.num_ranks):
        values = {0: (0.0, 0.0)}
        for held in held_by(timed, rank):
            values[_nanoseconds(held.start)] = held.until_backward, held.until_weight
            values[_nanoseconds(held.end)] = 0.0, 0.0
        for time, (until_backward, until_weight) in sorted(values.items()):
            args = {"until B": until_backward, "until W": until_weight}
            yield _event("C", rank, f"rank {rank} held", ts=_microseconds(time), args=args)


def _slice(rank: int, name: str, start: int, end: int, **others: object) -> Event:
    times = {"ts": _microseconds(start), "dur": _microseconds(end - start)}
    return _event("X", rank, name, **times, **others)


def _event(phase: str, rank: int | None, name: str, **others: object) -> Event:
    """Track 0 has a meaning of its own for viewers, so that rank 0 has track 1."""
    track = {} if rank is None else {"tid": rank + 1}
    return {"ph": phase, "pid": PROCESS, **track, "name": name, **others}


def _span(action: Action, timed: Timed) -> tuple[int, int]:
    simulation = timed.simulation
    return _nanoseconds(simulation.start[action]), _nanoseconds(simulation.end[action])


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _microseconds(nanoseconds: int) -> int | float:
    whole, rest = divmod(nanoseconds, 1000)
    return nanoseconds / 1000 if rest else whole
