"""A schedule for the eye: time across, ranks down, as zero-bubble papers draw it.

    rank 0 |F0F1F2F3......B0W0F4B1W1F5...
    rank 1 |..F0F1F2....B0F3B1W0F4B2W1...

Dots are idle time. Where a rank has one stage, its number is left out. A grid that is wider than the
terminal goes on below.
"""

from collections.abc import Collection
from math import ceil, floor
from statistics import fmean

from jaxpipe.schedules.actions import Action
from jaxpipe.schedules.schedule import Schedule
from jaxpipe.schedules.simulate import Simulation

IDLE, CUT = ".", "#"


def time_grid(schedule: Schedule, simulation: Simulation, *, width: int = 80) -> str:
    """What each rank does when, in lines of up to ``width``; the last line says what was wrapped or cut."""
    heads = _heads(schedule)
    room = max(width - len(heads[0]), 16)
    scale = _columns_per_second(schedule, simulation, room=room)
    length = ceil(simulation.makespan * scale - 1e-6)
    if length > room and scale == int(scale):
        room -= room % int(scale)
    lines = [
        _draw(order, schedule, simulation=simulation, scale=scale).ljust(length, IDLE)
        for order in schedule.orders
    ]
    blocks = [
        "\n".join(
            (head + line[first : first + room]).rstrip() for head, line in zip(heads, lines, strict=True)
        )
        for first in range(0, length, room)
    ]
    if len(blocks) > 1:
        blocks.append(f"(wrapped: {len(blocks)} pieces of {room / scale:g} in time)")
    spans = {action: _columns(action, simulation, scale=scale) for action in simulation.start}
    if any(len(_label(action, schedule)) > behind - first for action, (first, behind) in spans.items()):
        blocks.append(f"(an action too short for its name is drawn as {CUT}, or not at all)")
    return "\n\n".join(blocks)


def order_grid(schedule: Schedule, *, marked: Collection[Action] = (), width: int = 110) -> str:
    """The order of each rank's actions, ``marked`` ones in brackets: no time, so a broken schedule has one.

    Long orders are cut to a window that begins shortly before the first marked action; the last line says so.
    """
    heads = _heads(schedule)
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


def _heads(schedule: Schedule) -> list[str]:
    digits = len(str(schedule.num_ranks - 1))
    return [f"rank {rank:{digits}} |" for rank in range(schedule.num_ranks)]


def _label(action: Action, schedule: Schedule) -> str:
    placement = schedule.placement
    has_one_stage = placement.num_pipes == placement.num_chunks == 1
    return f"{action.kind}{action.microbatch}" if has_one_stage else str(action)


def _boxed(action: Action, is_marked: bool) -> str:
    return f"[{action}]" if is_marked else f" {action}"


def _draw(order: tuple[Action, ...], schedule: Schedule, *, simulation: Simulation, scale: float) -> str:
    """One rank's line."""
    pieces, column = [], 0
    for action in order:
        first, behind = _columns(action, simulation, scale=scale)
        label, span = _label(action, schedule), behind - first
        pieces += [IDLE * (first - column), label.ljust(span) if len(label) <= span else CUT * span]
        column = behind
    return "".join(pieces)


def _columns(action: Action, simulation: Simulation, *, scale: float) -> tuple[int, int]:
    """The first column, and the one behind the last."""
    return floor(simulation.start[action] * scale + 0.5), floor(simulation.end[action] * scale + 0.5)


def _columns_per_second(schedule: Schedule, simulation: Simulation, *, room: int) -> float:
    """Wide enough for each label and a blank; without the blank if so all fits in one piece.

    Where times do not fall on whole columns, one column more makes sure that rounding cuts no label.
    Costs far apart, or long transfers, would draw the grid out: there the shortest actions lose their labels.
    """
    durations = {action: simulation.end[action] - time for action, time in simulation.start.items()}
    too_short = max(fmean(durations.values()) / 6, simulation.makespan / max(2000, 6 * len(durations)))

    def scale(extra: int) -> float:
        return max(
            (len(_label(action, schedule)) + extra) / max(duration, too_short)
            for action, duration in durations.items()
        )

    def is_exact(scale: float) -> bool:
        times = (*simulation.start.values(), *simulation.end.values())
        return all(abs(time * scale - round(time * scale)) < 1e-6 for time in times)

    tight, wide = scale(0), scale(1)
    if simulation.makespan * tight <= room < simulation.makespan * wide and is_exact(tight):
        return tight
    return wide if is_exact(wide) else scale(2)
