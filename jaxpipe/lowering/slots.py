"""Slots by lifetime: a value's place is free again as soon as it has been read.

A value lives from the moment it is written to the moment it is read, once. Lifetimes are intervals,
and for intervals the greedy assignment by start, lowest free slot first, uses the fewest slots
there can be: as many as values that live at one time.
"""

import heapq
from collections.abc import Hashable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeVar

Value = TypeVar("Value", bound=Hashable)


class Phase(IntEnum):
    """The moments of a tick at which slots are touched, in their order."""

    ENDS = 0
    ACTION = 1
    ARRIVAL = 2


class Moment(NamedTuple):
    """Moments are ordered in time."""

    tick: int
    phase: Phase


class Lifetime(NamedTuple):
    """A slot that is read in a moment can be written in a later one."""

    written: Moment
    read: Moment


def allocate(lifetimes: Mapping[Value, Lifetime]) -> tuple[dict[Value, int], int]:
    """The slot of each value, and how many slots that takes."""
    slots: dict[Value, int] = {}
    free: list[int] = []
    used: list[tuple[Moment, int]] = []
    num_slots = 0
    for value, lifetime in sorted(lifetimes.items(), key=lambda item: item[1]):
        while used and used[0][0] < lifetime.written:
            heapq.heappush(free, heapq.heappop(used)[1])
        if free:
            slot = heapq.heappop(free)
        else:
            slot = num_slots
            num_slots += 1
        heapq.heappush(used, (lifetime.read, slot))
        slots[value] = slot
    return slots, num_slots
