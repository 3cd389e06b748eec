"""Traces keep the rules of the format.

Perfetto's own trace processor is a binary that its Python package downloads when first used, which a test
must not, so these are the rules by hand: those of "Trace Event Format" (Chromium, 2016), and those by which
Perfetto would drop an event: slices of a track that overlap, arrows whose ends lie in no slice, and counters
without numbers.
"""

import json
from bisect import bisect_right
from collections import Counter
from itertools import pairwise

import pytest

from jaxpipe.pictures import Timed, chrome_trace, find_trace_faults
from jaxpipe.pictures.timed import held_by
from jaxpipe.schedules import GENERATORS, Costs, forward_only, looped, simulate
from jaxpipe.schedules.messages import receives
from tests.pictures.reading import UNEVEN, timed

Event = dict[str, object]

KEYS = {
    "M": {"ph", "pid", "name", "args"},
    "X": {"ph", "pid", "tid", "name", "cat", "ts", "dur", "args"},
    "s": {"ph", "pid", "tid", "name", "cat", "id", "ts"},
    "f": {"ph", "pid", "tid", "name", "cat", "id", "ts", "bp"},
    "C": {"ph", "pid", "tid", "name", "ts", "args"},
}
"""Exactly these; of M also ``tid`` where it names a track."""


def events_of(one: Timed) -> dict[str, list[Event]]:
    """By phase, as a reader finds them in the file."""
    trace = json.loads(json.dumps(chrome_trace(one)))
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    found: dict[str, list[Event]] = {phase: [] for phase in KEYS}
    for event in trace["traceEvents"]:
        assert set(event) - ({"tid"} if event["ph"] == "M" else set()) == KEYS[event["ph"]]
        assert isinstance(event["name"], str)
        assert all(isinstance(event[key], int) for key in ("pid", "tid") if key in event)
        found[event["ph"]].append(event)
    return found


def nanoseconds(event: Event, key: str = "ts") -> int:
    """Which are whole, and not before 0."""
    value = event[key] * 1000
    assert abs(value - round(value)) < 1e-3
    assert value >= 0
    return round(value)


def spans_by_track(events: dict[str, list[Event]]) -> dict[int, list[tuple[int, int, str]]]:
    tracks: dict[int, list[tuple[int, int, str]]] = {}
    for event in events["X"]:
        start = nanoseconds(event)
        tracks.setdefault(event["tid"], []).append((start, start + nanoseconds(event, "dur"), event["name"]))
    return {track: sorted(spans) for track, spans in tracks.items()}


def check(one: Timed) -> None:
    events = events_of(one)
    names = {event["tid"]: event["args"]["name"] for event in events["M"] if event["name"] == "thread_name"}
    assert names == {rank + 1: f"rank {rank}" for rank in range(one.schedule.num_ranks)}
    assert [event["name"] for event in events["M"]].count("process_name") == 1
    tracks = spans_by_track(events)
    for spans in tracks.values():
        assert all(end > start for start, end, _ in spans)
        assert spans[0][0] == 0
        assert all(end == start for (_, end, _), (start, _, _) in pairwise(spans)), "a gap, or an overlap"
        assert spans[-1][1] == round(one.simulation.makespan * 1e9)
    assert set(tracks) == set(names)
    check_slices(one, events)
    check_idle_slices(one, events)
    check_arrows(one, events, tracks)
    check_counters(one, events)


def check_slices(one: Timed, events: dict[str, list[Event]]) -> None:
    """Each action once, at its time, with what it is."""
    actions = [event for event in events["X"] if event["cat"] not in ("ends", "idle")]
    slices = {event["name"]: event for event in actions}
    assert len(slices) == len(actions)
    for rank, action in one.schedule.actions():
        event = slices.pop(str(action))
        assert event["tid"] == rank + 1
        assert event["ts"] == pytest.approx(one.simulation.start[action] * 1e6, abs=1e-3)
        duration = one.simulation.end[action] - one.simulation.start[action]
        assert event["dur"] == pytest.approx(duration * 1e6, abs=2e-3)
        assert event["args"] == {
            "kind": str(action.kind),
            "microbatch": action.microbatch,
            "stage": action.stage,
            "chunk": one.schedule.placement.chunk(action.stage, action.pipe),
            "pipe": action.pipe,
        }
    assert slices == {}


def check_idle_slices(one: Timed, events: dict[str, list[Event]]) -> None:
    """Each says its cause in its name, and what the next action of its track is."""
    found = Counter[tuple[int, str]]()
    for event in events["X"]:
        if event["cat"] != "idle":
            continue
        args, ends = event["args"], nanoseconds(event) + nanoseconds(event, "dur")
        assert set(args) == {"cause", "seconds", "before"}
        assert event["name"] == f"idle: {args['cause']}"
        assert event["dur"] == pytest.approx(args["seconds"] * 1e6, abs=2e-3)
        found[event["tid"], args["cause"]] += args["seconds"]
        later = (
            (nanoseconds(other), other["name"])
            for other in events["X"]
            if other["tid"] == event["tid"] and other["cat"] not in ("ends", "idle")
            if nanoseconds(other) >= ends
        )
        after_all = "the end of the step" if args["cause"] == "drain" else "the ends of the pipe"
        assert args["before"] == min(later, default=(0, after_all))[1]
    spent = Counter[tuple[int, str]]()
    for idle in one.simulation.idle:
        spent[idle.rank + 1, str(idle.cause)] += idle.end - idle.start
    for which in found | spent:  # of those shorter than a nanosecond there are no more than a hundred
        assert found[which] == pytest.approx(spent[which], abs=1e-7)


def check_arrows(
    one: Timed, events: dict[str, list[Event]], tracks: dict[int, list[tuple[int, int, str]]]
) -> None:
    """Each message to another rank is an arrow from the slice that sends to the one that needs it."""
    starts = {event["id"]: event for event in events["s"]}
    ends = {event["id"]: event for event in events["f"]}
    assert starts.keys() == ends.keys()
    assert len(starts) == len(events["s"]) == len(events["f"]) == sum(receives(one.schedule).values())

    def slice_around(event: Event) -> str:
        spans, time = tracks[event["tid"]], nanoseconds(event)
        start, end, name = spans[bisect_right(spans, (time, float("inf"), "")) - 1]
        assert start <= time < end
        return name

    for count, start in starts.items():
        end = ends[count]
        assert start["cat"] == end["cat"] == "message"
        assert start["name"] == end["name"]
        assert end["bp"] == "e"
        assert nanoseconds(start) <= nanoseconds(end)
        assert start["tid"] != end["tid"]
        assert slice_around(start).replace("BW", "B") == start["name"]
        slice_around(end)


def check_counters(one: Timed, events: dict[str, list[Event]]) -> None:
    """For each rank one, whose times go up, whose peaks are the simulation's, and which ends at 0."""
    for rank in range(one.schedule.num_ranks):
        own = [event for event in events["C"] if event["name"] == f"rank {rank} held"]
        assert own
        times = [nanoseconds(event) for event in own]
        assert times == sorted(set(times))
        assert all(set(event["args"]) == {"until B", "until W"} for event in own)
        peaks = one.simulation.peak_until_backward[rank], one.simulation.peak_until_weight[rank]
        assert tuple(max(event["args"][key] for event in own) for key in ("until B", "until W")) == peaks
        assert own[-1]["args"] == {"until B": 0, "until W": 0}
        last: dict[int, object] = {}
        for held in held_by(one, rank):
            last[round(held.start * 1e9)] = {"until B": held.until_backward, "until W": held.until_weight}
        assert last.items() <= {nanoseconds(event): event["args"] for event in own}.items()
    assert sum(1 for event in events["C"]) == sum(
        1 for event in events["C"] if event["name"].endswith(" held")
    )


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize(
    "how", [{}, UNEVEN, {"costs": Costs(F=1e-9, B=1 / 3, W=2e-9), "transfer": 1e-9}], ids=str
)
def test_every_schedule_becomes_a_trace_that_keeps_the_rules(name: str, how: dict[str, object]) -> None:
    for sizes in ((2, 4), (4, 8)):
        check(timed(name, *sizes, **how))


def test_a_rank_alone_and_forwards_alone_are_traces_too() -> None:
    check(timed("1f1b", 1, 1))
    evaluation = forward_only(looped(2, 2), 3)
    check(Timed("evaluation", evaluation, simulate(evaluation)))


def test_the_rules_can_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    one = timed("zb_h1", 2, 3)
    broken = chrome_trace(one)
    slices = [event for event in broken["traceEvents"] if event["ph"] == "X"]
    slices[1]["ts"] -= 1
    monkeypatch.setitem(globals(), "chrome_trace", lambda _: broken)
    with pytest.raises(AssertionError):
        check(one)


def test_times_beyond_what_a_viewer_can_count_are_refused() -> None:
    assert find_trace_faults(timed("1f1b", 2, 2, costs=Costs(1e8, 1e8, 1e8))) == []
    [fault] = find_trace_faults(timed("1f1b", 2, 4, costs=Costs(1e9, 1e9, 1e9)))
    assert "makespan=1.5e+10 must be at most 9e+09 seconds for a trace; give smaller costs" in fault
