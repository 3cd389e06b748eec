"""The tick at which each action runs in the lowered program.

Each rank keeps its order and runs at most one action a tick, as early as its inputs have arrived.
What is computed in tick t can be used in tick t+1 on the same rank and in tick
t+``transfer_ticks`` on another: with 2, the message travels while tick t+1 computes.
The head gives the last stage its gradient at the start of the tick after its forward.
"""

from collections.abc import Iterator
from dataclasses import replace

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.dependencies import inputs, ready_order, result
from jaxpipe.schedules.schedule import Schedule


def assign_ticks(schedule: Schedule, transfer_ticks: int = 1) -> dict[Action, int]:
    """The tick of each action; ``DeadlockError`` if ranks wait for each other for ever."""
    if transfer_ticks not in (1, 2):
        raise ValueError(f"transfer_ticks={transfer_ticks} must be 1 or 2")
    placement = schedule.placement
    ticks: dict[Action, int] = {}
    arrival: dict[Action, tuple[int, int]] = {}
    free = [0] * schedule.num_ranks
    for rank, action in ready_order(schedule):
        tick = free[rank]
        for need in inputs(action, placement.num_stages):
            sender, sent = arrival[need]
            tick = max(tick, sent + (1 if sender == rank else transfer_ticks))
        ticks[action] = tick
        arrival[result(action)] = rank, tick
        free[rank] = tick + 1
    return ticks


def split_backward(schedule: Schedule) -> Schedule:
    """Each BW becomes B, then W: the message leaves a tick earlier, for a slot that W reads."""
    return replace(schedule, orders=tuple(tuple(_split(order)) for order in schedule.orders))


def fuse_backward(schedule: Schedule) -> Schedule:
    """Each B that its own W follows directly becomes BW; a W that comes later stays where it is."""
    return replace(schedule, orders=tuple(tuple(_fuse(order)) for order in schedule.orders))


def _split(order: tuple[Action, ...]) -> Iterator[Action]:
    for action in order:
        if action.kind is Kind.BW:
            yield action._replace(kind=Kind.B)
            yield action._replace(kind=Kind.W)
        else:
            yield action


def _fuse(order: tuple[Action, ...]) -> Iterator[Action]:
    skip = False
    for action, following in zip(order, (*order[1:], None), strict=True):
        if skip:
            skip = False
        elif action.kind is Kind.B and following == action._replace(kind=Kind.W):
            skip = True
            yield action._replace(kind=Kind.BW)
        else:
            yield action
