"""The file of measured ticks: a run with ``run.trace_step`` writes it, ``jaxpipe explain`` reads it.

One JSON object: what each rank did in each tick of one step, and when, by marks of the host's clock:

    start   the tick begins, where the one before has ended
    ends    what all ranks do together at the ends of the pipe is done
    action  the rank's action is done
    exchange  its messages have been exchanged

Times are of the first device of each rank, in seconds from the first mark. Each process has its host's clock,
and clocks of different hosts differ by an amount that nobody knows.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from jaxpipe.errors import InputError
from jaxpipe.schedules import Action, Schedule, from_csv, parse_action, to_csv

FORMAT = "jaxpipe ticks 1"

ENDS = ("unembed", "head", "embed")
"""What all ranks may do together at the start of a tick, in this order."""

HOW_TO_GET_ONE = "`train.py CONFIG --run.trace_step 4` writes one into its run.dir"


class Marks(NamedTuple):
    """When the parts of a rank's tick ended, in seconds."""

    start: float
    ends: float
    action: float
    exchange: float


@dataclass(frozen=True)
class TickTrace:
    """A step with marks.

    step: which one of the run.
    schedule: as it ran, with B and W apart or fused.
    specialised: whether the program was one of segments (lowering/segments.py).
    actions, marks: ``[tick][rank]``.
    ends: ``[tick]``: of ``ENDS``, what all ranks did together, once for each pipe that did.
    processes: of each rank, which process its first device belongs to.
    before, after: seconds of the step before the first mark and after the last one, by process 0's clock.
    step_seconds: of this step, with its marks; ``plain_seconds`` of steps without marks shortly before it.
    is_warm: whether the program with marks had run once before.
    run: what ran and on what, for people: model, mesh, remat, device and so on.
    """

    step: int
    schedule: Schedule
    transfer_ticks: int
    specialised: bool
    actions: tuple[tuple[Action | None, ...], ...]
    ends: tuple[tuple[str, ...], ...]
    marks: tuple[tuple[Marks, ...], ...]
    processes: tuple[int, ...]
    before: float
    after: float
    step_seconds: float
    plain_seconds: tuple[float, ...]
    is_warm: bool
    run: Mapping[str, Any]

    @property
    def num_ticks(self) -> int:
        return len(self.actions)


def to_text(trace: TickTrace) -> str:
    """The text of the file."""
    given = {
        "format": FORMAT,
        "step": trace.step,
        "schedule": to_csv(trace.schedule),
        "transfer_ticks": trace.transfer_ticks,
        "specialised": trace.specialised,
        "run": dict(trace.run),
        "step_seconds": trace.step_seconds,
        "plain_seconds": list(trace.plain_seconds),
        "is_warm": trace.is_warm,
        "before": trace.before,
        "after": trace.after,
        "processes": list(trace.processes),
    }
    ticks = [
        {
            "ends": list(ends),
            "actions": [None if action is None else str(action) for action in actions],
            "marks": [[round(time, 9) for time in mark] for mark in marks],
        }
        for ends, actions, marks in zip(trace.ends, trace.actions, trace.marks, strict=True)
    ]
    lines = ",\n  ".join(json.dumps(tick) for tick in ticks)
    return f'{json.dumps(given, indent=1)[:-2]},\n "ticks": [\n  {lines}\n ]\n}}\n'


def read_ticks(path: Path) -> TickTrace:
    """``InputError`` names the file and what is wrong with it."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no JSON ({error}); {HOW_TO_GET_ONE}") from error
    if not isinstance(given, dict) or given.get("format") != FORMAT:
        raise InputError(f"{path}: is no file of ticks in the format {FORMAT!r}; {HOW_TO_GET_ONE}")
    faults = [*_find_faults(given)]
    if faults:
        raise InputError(f"{path}: {'; '.join(faults)}; the file is damaged: {HOW_TO_GET_ONE}")
    try:
        trace = _from_json(given)
    except ValueError as error:
        raise InputError(f"{path}: {error}; the file is damaged: {HOW_TO_GET_ONE}") from error
    faults = [*_find_contradictions(trace)]
    if faults:
        raise InputError(f"{path}: {'; '.join(faults[:5])}; the file is damaged: {HOW_TO_GET_ONE}")
    return trace


def _from_json(given: Mapping[str, Any]) -> TickTrace:
    ticks = given["ticks"]
    return TickTrace(
        step=given["step"],
        schedule=from_csv(given["schedule"]),
        transfer_ticks=given["transfer_ticks"],
        specialised=given["specialised"],
        actions=tuple(
            tuple(None if text is None else parse_action(text) for text in tick["actions"]) for tick in ticks
        ),
        ends=tuple(tuple(tick["ends"]) for tick in ticks),
        marks=tuple(tuple(Marks(*map(float, marks)) for marks in tick["marks"]) for tick in ticks),
        processes=tuple(given["processes"]),
        before=float(given["before"]),
        after=float(given["after"]),
        step_seconds=float(given["step_seconds"]),
        plain_seconds=tuple(map(float, given["plain_seconds"])),
        is_warm=given["is_warm"],
        run=given["run"],
    )


def _find_faults(given: Mapping[str, Any]) -> Iterator[str]:
    """Values that are missing or of the wrong type."""
    for name, (is_right, what) in _KEYS.items():
        if name not in given:
            yield f"lacks {name}"
        elif not is_right(given[name]):
            yield f"{name} must be {what}"
    ticks = given.get("ticks")
    for number, tick in enumerate(ticks if isinstance(ticks, list) else []):
        if not _is_tick(tick):
            yield (
                f"tick {number} must hold ends, and of each rank an action or null, and {len(Marks._fields)} "
                "marks in seconds"
            )
            return


def _is_tick(tick: Any) -> bool:
    if not isinstance(tick, dict):
        return False
    ends, actions, marks = (tick.get(name) for name in ("ends", "actions", "marks"))
    return (
        isinstance(ends, list)
        and all(end in ENDS for end in ends)
        and isinstance(actions, list)
        and all(action is None or isinstance(action, str) for action in actions)
        and isinstance(marks, list)
        and len(marks) == len(actions)
        and all(_are_seconds(each) and len(each) == len(Marks._fields) for each in marks)
    )


def _find_contradictions(trace: TickTrace) -> Iterator[str]:
    """Where the ticks are not those of the schedule, or time goes back."""
    num_ranks = trace.schedule.num_ranks
    if len(trace.processes) != num_ranks:
        yield f"processes must name one for each of {num_ranks} ranks, found {len(trace.processes)}"
    if len(trace.run["layers_per_stage"]) != trace.schedule.placement.num_stages:
        yield "layers_per_stage must have a number for each stage of the schedule"
    if any(len(actions) != num_ranks for actions in trace.actions):
        yield f"each tick must have an entry for each of {num_ranks} ranks"
        return
    for rank, order in enumerate(trace.schedule.orders):
        ran = tuple(actions[rank] for actions in trace.actions if actions[rank] is not None)
        if ran != order:
            yield f"the actions of rank {rank} in its ticks must be those of the schedule, in its order"
        times = [time for marks in trace.marks for time in marks[rank]]
        if times[-1] <= times[0]:
            yield f"the marks of rank {rank} must not all be at one time"
        back = next((index for index, (one, two) in enumerate(pairwise(times)) if two < one), None)
        if back is not None:
            yield f"the marks of rank {rank} must not go back in time, but do in tick {(back + 1) // 4}"


def _is_run(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    layers, mesh = value.get("layers_per_stage"), value.get("mesh")
    return (
        isinstance(value.get("model"), dict)
        and isinstance(value.get("remat"), str)
        and isinstance(layers, list)
        and all(map(_is_count, layers))
        and isinstance(mesh, dict)
        and all(map(_is_count, mesh.values()))
        and _is_number(value.get("clocks_differ_by_at_most", 0))
    )


def _is_number(value: Any) -> bool:
    """No step takes a billion seconds, which is also what a trace can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e9


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_seconds(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


_KEYS = {
    "step": (_is_count, "a whole number"),
    "schedule": (lambda value: isinstance(value, str), "the CSV of a schedule"),
    "transfer_ticks": (lambda value: value in (1, 2), "1 or 2"),
    "specialised": (lambda value: isinstance(value, bool), "true or false"),
    "run": (lambda value: _is_run(value), "an object with the run's model, mesh, layers_per_stage and remat"),
    "step_seconds": (lambda value: _is_number(value) and value > 0, "a number of seconds above 0"),
    "plain_seconds": (
        lambda value: _are_seconds(value) and all(each > 0 for each in value),
        "a list of seconds above 0",
    ),
    "is_warm": (lambda value: isinstance(value, bool), "true or false"),
    "before": (lambda value: _is_number(value) and value >= 0, "a number of seconds, 0 or more"),
    "after": (lambda value: _is_number(value) and value >= 0, "a number of seconds, 0 or more"),
    "processes": (lambda value: isinstance(value, list) and all(map(_is_count, value)), "whole numbers"),
    "ticks": (lambda value: isinstance(value, list) and bool(value), "a list of ticks"),
}
