"""Is a schedule right? All that is wrong with it, at once, with the actions marked in its grid.

It is right if every microbatch has one F and one BW, or one B and one W, on every stage of its pipe, on
the rank that holds the stage, and there is an R for each backward or for none; if every rank has an
action's inputs before the action; if no ranks wait for each other in a circle, not even when each send
waits for its receive; and if sends and receives pair up.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from typing import NamedTuple

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.communication import RendezvousError, with_communication
from jaxpipe.schedules.dependencies import DeadlockError, inputs, ready_order, result
from jaxpipe.schedules.messages import receives, sends
from jaxpipe.schedules.render import order_grid
from jaxpipe.schedules.schedule import Schedule


class Fault(NamedTuple):
    """What is wrong, and with which actions."""

    text: str
    actions: tuple[Action, ...] = ()


def validate(schedule: Schedule, *, forward_only: bool = False) -> None:
    """Raise ``ValueError`` with all faults of a schedule, and its grid with the offending actions marked.

    ``forward_only`` asks for one F of every microbatch on every stage and nothing else.
    """
    faults = find_order_faults(schedule, forward_only=forward_only)
    if faults:
        marked = {action for fault in faults for action in fault.actions}
        lines = [f"schedule {schedule.name!r} is broken:", *(f"- {fault.text}" for fault in faults)]
        raise ValueError("\n".join([*lines, order_grid(schedule, marked=marked)]))


def find_order_faults(schedule: Schedule, *, forward_only: bool = False) -> list[Fault]:
    """What ``validate`` reports, one by one."""
    faults = [*_find_unknown(schedule)]
    unknown = {action for fault in faults for action in fault.actions}
    orders = tuple(tuple(action for action in order if action not in unknown) for order in schedule.orders)
    known = replace(schedule, orders=orders)
    faults += _find_misplaced(known)
    faults += _find_wrong_counts(known, forward_only=forward_only)
    faults += _find_late_inputs(known)
    faults += _find_circles(known)
    faults += _find_single_messages(known)
    if not faults:
        faults += _find_rendezvous_deadlock(schedule)
    return faults


def _find_unknown(schedule: Schedule) -> Iterator[Fault]:
    """Actions of a stage, pipe or microbatch that there is not."""
    placement = schedule.placement
    for rank, action in schedule.actions():
        if action.pipe >= placement.num_pipes or action.stage >= placement.num_stages:
            there_are = f"{placement.num_stages} stages, {placement.num_pipes} pipes"
            yield Fault(
                f"{action} on rank {rank} does not exist, there are {there_are}; remove it", (action,)
            )
        elif action.microbatch not in (own := schedule.microbatches(action.pipe)):
            there_are = f"microbatches {own.start} to {own.stop - 1} in pipe {action.pipe}"
            yield Fault(
                f"{action} on rank {rank} does not exist, there are {there_are}; remove it", (action,)
            )


def _find_misplaced(schedule: Schedule) -> Iterator[Fault]:
    """Actions on the wrong rank, and stages that follow each other farther apart than one hop."""
    placement, num_ranks = schedule.placement, schedule.num_ranks
    for rank, action in schedule.actions():
        if (home := placement.rank(action.stage, action.pipe)) != rank:
            yield Fault(
                f"{action} is on rank {rank}, but rank {home} holds its stage; move it there", (action,)
            )
    for pipe, ranks in enumerate(placement.stage_ranks):
        for stage, (here, there) in enumerate(pairwise(ranks)):
            if (there - here) % num_ranks not in (0, 1, num_ranks - 1):
                where = f"stages {stage} and {stage + 1} of pipe {pipe} lie on ranks {here} and {there}"
                yield Fault(
                    f"{where}, but a message travels one hop; place them on one rank or on neighbours"
                )


def _find_wrong_counts(schedule: Schedule, *, forward_only: bool) -> Iterator[Fault]:
    """One F and one backward of each microbatch on each stage; BW counts as a B and as a W; R all or none."""
    placement = schedule.placement
    count: Counter[Action] = Counter()
    for _, action in schedule.actions():
        parts = (Kind.B, Kind.W) if action.kind is Kind.BW else (action.kind,)
        count.update(action._replace(kind=kind) for kind in parts)
    for pipe in range(placement.num_pipes):
        stages, kinds = range(placement.num_stages), (Kind.F, Kind.B, Kind.W, *[Kind.R] * schedule.recomputes)
        for stage, microbatch, kind in product(stages, schedule.microbatches(pipe), kinds):
            action = Action(kind, stage, microbatch, pipe)
            due = 0 if forward_only and kind is not Kind.F else 1
            if count[action] != due:
                rule = f"rank {placement.rank(stage, pipe)} must run it {('never', 'once')[due]}"
                if kind is Kind.R and due:
                    rule += ", as there are R of others; or remove them all"
                text = f"{action} runs {count[action]} times; {rule}"
                fused = Action(Kind.BW, stage, microbatch, pipe)
                yield Fault(text, (action, fused) if kind in (Kind.B, Kind.W) else (action,))


def _find_late_inputs(schedule: Schedule) -> Iterator[Fault]:
    """Actions that stand before something that the same rank must have done for them."""
    for rank, order in enumerate(schedule.orders):
        position = {result(action): index for index, action in reversed([*enumerate(order)])}
        for index, action in enumerate(order):
            needs = inputs(action, schedule.placement.num_stages)
            if action.kind in (Kind.B, Kind.BW):
                needs += (action._replace(kind=Kind.R),)
            for need in needs:
                if position.get(need, index) > index:
                    text = f"{action} comes before {need} on rank {rank}, but needs it; move it behind"
                    yield Fault(text, (action,))


def _find_circles(schedule: Schedule) -> Iterator[Fault]:
    """Ranks that wait for each other for ever, each circle once."""
    try:
        deque(ready_order(schedule), maxlen=0)
    except DeadlockError as deadlock:
        waiting = deadlock.waiting
    else:
        return
    done: set[Action] = set()
    holder: dict[Action, int] = {}
    for rank, order in enumerate(schedule.orders):
        end = order.index(waiting[rank]) if rank in waiting else len(order)
        done.update(map(result, order[:end]))
        holder.update((result(action), rank) for action in order)
    blocked_by = {}
    for rank, action in waiting.items():
        missing = next(need for need in inputs(action, schedule.placement.num_stages) if need not in done)
        blocked_by[rank] = holder.get(missing)
    for circle in _circles(blocked_by):
        text = ", ".join(f"rank {rank} at {waiting[rank]} for rank {blocked_by[rank]}" for rank in circle)
        yield Fault(
            f"deadlock: {text} waits for ever; reorder one of them", tuple(waiting[rank] for rank in circle)
        )


def _circles(successor: dict[int, int | None]) -> Iterator[list[int]]:
    """The circles of more than one rank that come of following ``successor``, each from its lowest rank."""
    seen: set[int] = set()
    for start in sorted(successor):
        path: dict[int, int] = {}
        rank: int | None = start
        while rank is not None and rank in successor and rank not in seen:
            seen.add(rank)
            path[rank] = len(path)
            rank = successor[rank]
        if rank is not None and rank in path and len(circle := [*path][path[rank] :]) > 1:
            lowest = circle.index(min(circle))
            yield circle[lowest:] + circle[:lowest]


def _find_single_messages(schedule: Schedule) -> Iterator[Fault]:
    """Sends that nobody receives, receives that nobody sends."""
    sent, received = sends(schedule), receives(schedule)
    for message, surplus in (sent - received).items():
        yield Fault(
            f"{surplus} send of {message} has no receive; its reader is missing there", (message.source,)
        )
    for message, surplus in (received - sent).items():
        yield Fault(f"{surplus} receive of {message} has no send; its writer is missing there")


def _find_rendezvous_deadlock(schedule: Schedule) -> Iterator[Fault]:
    try:
        with_communication(schedule)
    except RendezvousError as deadlock:
        yield Fault(str(deadlock))
