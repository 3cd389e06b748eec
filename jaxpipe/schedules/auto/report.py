"""What a search found, in words."""

from collections.abc import Iterator

from jaxpipe.schedules.auto.find import Found
from jaxpipe.schedules.auto.memory import TOLERANCE


def describe(found: Found) -> list[str]:
    """Lines for a person: what was found, how much better any order could be, and what it is better than."""
    return [*_lines(found)]


def _lines(found: Found) -> Iterator[str]:
    simulation, placement = found.simulation, found.schedule.placement
    makespan = simulation.makespan
    chunks = f"{placement.num_chunks} chunk{'s' if placement.num_chunks > 1 else ''} a rank"
    yield f"makespan {makespan:g}, bubble {simulation.bubble_fraction:.1%}; {chunks}, holds {found.memory:g}"
    least = f"no order of {_tried(found)} takes less than {found.bound.seconds:g} ({found.bound.reason})"
    saved = 1 - found.bound.seconds / makespan
    worth = f"at most {saved:.1%} could be saved" if found.gap > TOLERANCE else "it is the best of these"
    yield f"{least}: {worth}"
    if found.named is None:
        yield "no named schedule fits"
    elif found.named_makespan is not None:
        bubble = 1 - simulation.ideal / found.named_makespan
        yield f"best named schedule: {found.named}, makespan {found.named_makespan:g}, bubble {bubble:.1%}"
    yield f"{found.num_tried} orders timed"


def _tried(found: Found) -> str:
    """The placements that were tried."""
    chunks = {placement.num_chunks for placement in found.placements if placement.num_pipes == 1}
    pipes = max(placement.num_pipes for placement in found.placements)
    number = f"at most {max(chunks)}" if len(chunks) > 1 else f"{max(chunks)}"
    number += " chunks" if max(chunks) > 1 else " chunk"
    layout = ", looped or in a V," if 2 in chunks else ""
    return f"{number}{layout} and {'one or two pipes' if pipes > 1 else 'one pipe'}"
