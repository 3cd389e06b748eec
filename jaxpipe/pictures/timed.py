"""A schedule with its times: what every picture is drawn from."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from jaxpipe.schedules import Cause, Idle, Kind, Schedule, Simulation, held_over_time


class Timed(NamedTuple):
    """A schedule and its simulation, under the name that the user gave it.

    stages_per_unit: activations held are told in units of so many stages. With as many as a rank has chunks,
        schedules of different chunks compare.
    """

    title: str
    schedule: Schedule
    simulation: Simulation
    stages_per_unit: int = 1

    @property
    def peak_until_backward(self) -> float:
        """The most that any rank holds until B, in units."""
        return max(self.simulation.peak_until_backward) / self.stages_per_unit

    @property
    def peak_until_weight(self) -> float:
        """The most that any rank holds until W, in units."""
        return max(self.simulation.peak_until_weight) / self.stages_per_unit


class Held(NamedTuple):
    """What a rank holds from ``start`` to ``end``, in units."""

    start: float
    end: float
    until_backward: float
    until_weight: float


def held_by(timed: Timed, rank: int) -> Iterator[Held]:
    """The stretches, one after the other, in which a rank holds the same; those with nothing are left out."""
    until_backward, until_weight = _held_at(timed, rank, Kind.B), _held_at(timed, rank, Kind.W)
    times = sorted(until_backward.keys() | until_weight.keys())
    backward = weight = 0.0
    for time, following in zip(times, [*times[1:], timed.simulation.makespan], strict=False):
        backward, weight = until_backward.get(time, backward), until_weight.get(time, weight)
        if following > time and (backward or weight):
            yield Held(time, following, backward, weight)


def what_follows(idle: Idle, timed: Timed) -> str:
    """What the rank is idle before: its next action, or what comes after its last."""
    order, start = timed.schedule.orders[idle.rank], timed.simulation.start
    following = bisect_left(order, idle.end, key=start.__getitem__)
    if following < len(order):
        return str(order[following])
    return "the end of the step" if idle.cause is Cause.DRAIN else "the ends of the pipe"


def _held_at(timed: Timed, rank: int, until: Kind) -> Mapping[float, float]:
    """From each time at which it changes; of changes at one time the last counts."""
    if timed.schedule.is_forward_only:
        return {}
    simulation = timed.simulation
    events = held_over_time(timed.schedule.orders[rank], until, start=simulation.start, end=simulation.end)
    return {time: held / timed.stages_per_unit for time, held in events}
