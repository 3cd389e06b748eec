"""The fastest layouts that fit, and the fastest for less memory.

Every layout has a time that it cannot beat, by formula. They are looked at from the smallest of these on, and
the search ends where that is longer than what was found: nothing faster is left. Only what is promising
is made and timed; what was timed is kept, as a search for another amount of memory asks for much of it again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import isclose
from typing import NamedTuple

from jaxpipe.planning.communication import TWO_PIPES
from jaxpipe.planning.layouts import Layout, Task, layouts
from jaxpipe.planning.memory_estimate import NO_SLOTS, Bytes, estimated_bytes
from jaxpipe.planning.part_seconds import PartSeconds
from jaxpipe.planning.predict import StepTime, is_as_fast, least_seconds, predict
from jaxpipe.planning.tick_rows import all_slots_of, slots_of
from jaxpipe.schedules.generators.catalog import GENERATORS

PartsOf = Callable[[Layout], PartSeconds]
"""What the parts of a step take; neither order nor ticks matter to it."""

NEAR = 1.12
"""How many times as much as there is formulas of bytes may say of a layout that fits after all."""

_SIMPLICITY = {name: number for number, name in enumerate(GENERATORS)}

_MOST_MISFITS = 1500
"""How many layouts that are too large are looked at, to say which would be faster."""


class Proposal(NamedTuple):
    """A layout with what it is predicted to take; ``bytes`` are by formula."""

    layout: Layout
    time: StepTime
    bytes: Bytes


class _Candidate(NamedTuple):
    least_seconds: float
    least_bytes: float
    layout: Layout


@dataclass(frozen=True)
class Space:
    """All layouts of a task, those first that may be fastest; ``known`` fills as they are timed."""

    task: Task
    parts_of: PartsOf
    candidates: tuple[_Candidate, ...]
    known: dict[Layout, Proposal] = field(default_factory=dict)


def make_space(task: Task, parts_of: PartsOf) -> Space:
    """Every layout with the least that it can take."""
    parts_of = _once_for_all_orders(parts_of)
    found = []
    for layout in layouts(task):
        seconds = least_seconds(task, layout, parts_of(layout))
        found.append(_Candidate(seconds, estimated_bytes(task, layout, NO_SLOTS).total, layout))
    found.sort(key=lambda candidate: candidate.least_seconds)
    return Space(task, parts_of, tuple(found))


def fastest(
    space: Space, memory: float, *, looked_at: Callable[[int], None] = lambda _: None
) -> Iterator[Proposal]:
    """Layouts within so many bytes, by formula, the fastest first; each is certain when it is given out.

    Of those that are as fast the simplest schedule comes first, so all of them are timed before one is given.
    looked_at: is told how many candidates are done with.
    """
    waiting: list[Proposal] = []
    for candidate in space.candidates:
        waiting.sort(key=rank)
        while waiting and waiting[0].time.total < candidate.least_seconds:
            yield waiting.pop(0)
        looked_at(1)
        if candidate.least_bytes <= memory and _may_fit(space.task, candidate.layout, memory):
            proposal = proposal_of(space, candidate.layout)
            if proposal.bytes.total <= memory:
                waiting.append(proposal)
    yield from sorted(waiting, key=rank)


def rank(proposal: Proposal) -> tuple[float, int]:
    """To sort by: seconds, then how simple the schedule is, as the catalogue has them."""
    return proposal.time.total, _SIMPLICITY[proposal.layout.schedule]


def are_alike(one: Proposal, other: Proposal) -> bool:
    """Whether they differ in the name of the schedule alone: with few microbatches many orders are one."""
    return (
        one.layout._replace(schedule="") == other.layout._replace(schedule="")
        and isclose(one.time.total, other.time.total, rel_tol=1e-9)
        and one.bytes == other.bytes
    )


def proposal_of(space: Space, layout: Layout) -> Proposal:
    """A layout timed."""
    if layout not in space.known:
        space.known[layout] = Proposal(
            layout,
            predict(space.task, layout, space.parts_of(layout)),
            estimated_bytes(space.task, layout, all_slots_of(layout)),
        )
    return space.known[layout]


def smallest(space: Space, count: int) -> list[Proposal]:
    """Those that hold least, by formula."""
    ranked = sorted(space.candidates, key=lambda candidate: candidate.least_bytes)[: 20 * count]
    ranked.sort(key=lambda candidate: _bytes_by_order(space.task, candidate.layout))
    return [proposal_of(space, candidate.layout) for candidate in ranked[:count]]


def faster_but_larger(space: Space, best: Proposal, memory: float) -> list[Proposal]:
    """Layouts that would beat ``best`` but do not fit, by formula: of each remat and ZeRO the smallest.

    The fastest first; none that needs more than twice the memory.
    """
    may = (
        candidate.layout
        for candidate in space.candidates
        if candidate.least_seconds < best.time.total and candidate.least_bytes <= 2 * memory
    )
    sizes = {layout: _bytes_by_order(space.task, layout) for layout in islice(may, _MOST_MISFITS)}
    found: dict[tuple, Proposal] = {}
    for layout in sorted((layout for layout in sizes if sizes[layout] > memory), key=sizes.__getitem__):
        kind = layout.remat, layout.zero
        if kind in found or sizes[layout] > 2 * memory:
            continue
        proposal = proposal_of(space, layout)
        if proposal.time.total < best.time.total and not is_as_fast(proposal.time, best.time):
            found[kind] = proposal
    return sorted(found.values(), key=lambda proposal: proposal.time.total)


def frontier(space: Space, limits: list[float]) -> list[Proposal]:
    """The fastest layout for each amount of memory, where there is one; none twice."""
    found: dict[Layout, Proposal] = {}
    for limit in limits:
        best = next(fastest(space, limit), None)
        if best is not None:
            found[best.layout] = best
    return sorted(found.values(), key=lambda proposal: proposal.bytes.total)


def _may_fit(task: Task, layout: Layout, memory: float) -> bool:
    return _bytes_by_order(task, layout) <= memory


def _bytes_by_order(task: Task, layout: Layout) -> float:
    return estimated_bytes(task, layout, slots_of(layout)).total


def _once_for_all_orders(parts_of: PartsOf) -> PartsOf:
    """The same, asked once for all layouts that differ in order and ticks alone."""
    known: dict[Layout, PartSeconds] = {}

    def asked_once(layout: Layout) -> PartSeconds:
        like = layout._replace(
            schedule="chimera" if layout.schedule in TWO_PIPES else "1f1b",
            transfer_ticks=1,
            fuse_backward=False,
        )
        if like not in known:
            known[like] = parts_of(like)
        return known[like]

    return asked_once
