"""How many microbatches' activations a rank holds, in stage activations.

F adds one, which the backward frees. What B needs is free after B, what W needs only after W:
zero-bubble schedules, which delay W, differ in the two. A schedule of F alone holds nothing.
R changes nothing of this: what it makes, until B and until W, is counted apart, since R (``since``).
"""

from collections.abc import Iterator, Mapping

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.schedule import Schedule


def peak_held(schedule: Schedule, until: Kind, *, since: Kind = Kind.F) -> tuple[int, ...]:
    """For each rank the most that it holds until B or until W, by the order of its actions.

    since: F, or R for what is recomputed.
    """
    if schedule.is_forward_only:
        return (0,) * schedule.num_ranks
    peaks = []
    for order in schedule.orders:
        held = peak = 0
        for action in order:
            held += _change(action, until, since)
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)


def held_over_time(
    order: tuple[Action, ...],
    until: Kind,
    *,
    start: Mapping[Action, float],
    end: Mapping[Action, float],
) -> Iterator[tuple[float, int]]:
    """``(time, held from then on)`` of one rank: what F holds counts from its start to the end of B or W."""
    held = 0
    for action in order:
        if change := _change(action, until, Kind.F):
            held += change
            yield (start if change > 0 else end)[action], held


def _change(action: Action, until: Kind, since: Kind) -> int:
    if action.kind is since:
        return 1
    return -1 if action.kind in (until, Kind.BW) else 0
