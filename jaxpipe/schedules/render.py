"""A schedule's order for the eye, and its figures for a program.

The order has no times, so that a broken schedule has one too; ``grid`` draws times.
"""

from collections.abc import Collection

from jaxpipe.schedules.actions import Action
from jaxpipe.schedules.schedule import Schedule
from jaxpipe.schedules.simulate import Simulation


def order_grid(schedule: Schedule, *, marked: Collection[Action] = (), width: int = 110) -> str:
    """The order of each rank's actions, ``marked`` ones in brackets: no time, so a broken schedule has one.

    Long orders are cut to a window that begins shortly before the first marked action; the last line says so.
    """
    heads = line_heads(schedule)
    cell = max((len(str(action)) for _, action in schedule.actions()), default=0) + 2
    longest = max(len(order) for order in schedule.orders)
    count = max((width - len(heads[0])) // cell, 1)
    spots = [index for order in schedule.orders for index, action in enumerate(order) if action in marked]
    first = max(min(min(spots, default=0) - count // 4, longest - count), 0)
    lines = []
    for head, order in zip(heads, schedule.orders, strict=True):
        cells = (_boxed(action, action in marked).ljust(cell) for action in order[first : first + count])
        lines.append((head + "".join(cells)).rstrip())
    if longest > count:
        lines.append(
            f"(cut: actions {first} to {min(first + count, longest) - 1} of 0 to {longest - 1} on each rank)"
        )
    return "\n".join(lines)


def as_dict(schedule: Schedule, simulation: Simulation) -> dict[str, object]:
    """The figures and the actions, as plain values for JSON."""
    return {
        "schedule": schedule.name,
        "ranks": schedule.num_ranks,
        "microbatches": schedule.num_microbatches,
        "chunks": schedule.placement.num_chunks,
        "makespan": simulation.makespan,
        "ideal": simulation.ideal,
        "bubble": simulation.bubble,
        "bubble_fraction": simulation.bubble_fraction,
        "longest_rank_span": simulation.longest_rank_span,
        "peak_until_backward": list(simulation.peak_until_backward),
        "peak_until_weight": list(simulation.peak_until_weight),
        "actions": [[str(action) for action in order] for order in schedule.orders],
    }


def line_heads(schedule: Schedule) -> tuple[str, ...]:
    """What each rank's line begins with."""
    digits = len(str(schedule.num_ranks - 1))
    return tuple(f"rank {rank:{digits}} |" for rank in range(schedule.num_ranks))


def _boxed(action: Action, is_marked: bool) -> str:
    return f"[{action}]" if is_marked else f" {action}"
