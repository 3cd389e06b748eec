"""What a search found, in words."""

from collections.abc import Iterator

from jaxpipe.schedules.auto.find import Found


def describe(found: Found) -> list[str]:
    """Lines for a person: what was found, how much better any order could be, and what it is better than."""
    return [*_lines(found)]


def _lines(found: Found) -> Iterator[str]:
    simulation, placement = found.simulation, found.schedule.placement
    makespan = simulation.makespan
    chunks = f"{placement.num_chunks} chunk{'s' if placement.num_chunks > 1 else ''} a rank"
    yield f"makespan {makespan:g}, bubble {simulation.bubble_fraction:.1%}; {chunks}, holds {found.memory:g}"
    least = f"no order takes less than {found.bound.seconds:g} ({found.bound.reason})"
    yield f"{least}: {'it is the best' if found.gap <= 1e-9 else f'at most {found.gap:.1%} could be saved'}"
    if found.named is None:
        yield "no named schedule fits"
    elif found.named_makespan is not None:
        bubble = 1 - simulation.ideal / found.named_makespan
        yield f"best named schedule: {found.named}, makespan {found.named_makespan:g}, bubble {bubble:.1%}"
    yield f"{found.num_tried} orders timed"
