"""What an action waits for.

    F of stage s    F of stage s-1
    B of stage s    F of stage s, B of stage s+1
    W of stage s    B of stage s
    R of stage s    F of stage s

all of the same microbatch and pipe. BW stands for B in this: what it sends is the input gradient. In a
schedule with R, B needs its own, too, which is not said here: both are of one rank, so their order says all.
"""

from collections import deque
from collections.abc import Iterator
from itertools import chain

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.schedule import Schedule


def result(action: Action) -> Action:
    """The action by which others know what this one computes: B for BW, else itself."""
    return _like(action, Kind.B) if action.kind is Kind.BW else action


def inputs(action: Action, num_stages: int) -> tuple[Action, ...]:
    """The results that ``action`` needs, its own stage's first."""
    stage = action.stage
    if action.kind is Kind.F:
        return (_like(action, Kind.F, stage=stage - 1),) if stage > 0 else ()
    if action.kind is Kind.W:
        return (_like(action, Kind.B),)
    if action.kind is Kind.R:
        return (_like(action, Kind.F),)
    if stage == num_stages - 1:
        return (_like(action, Kind.F),)
    return _like(action, Kind.F), _like(action, Kind.B, stage=stage + 1)


def consumer(action: Action, num_stages: int) -> Action | None:
    """The result that the next or previous stage makes of what ``action`` computes, if there is one.

    None for W and R, which send nothing, for F of the last stage and for B of the first.
    """
    stage = action.stage + (1 if action.kind is Kind.F else -1)
    if action.kind in (Kind.W, Kind.R) or not 0 <= stage < num_stages:
        return None
    return _like(action, Kind.F if action.kind is Kind.F else Kind.B, stage=stage)


class DeadlockError(ValueError):
    """``waiting`` has, for each rank that can never end, the action at which it waits."""

    def __init__(self, schedule: Schedule, waiting: dict[int, Action]) -> None:
        where = ", ".join(f"rank {rank} at {action}" for rank, action in waiting.items())
        super().__init__(f"schedule {schedule.name!r} has a deadlock: {where} wait for ever; reorder them")
        self.waiting = waiting


def ready_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """``(rank, action)`` in an order in which ranks keep theirs and inputs come first.

    ``DeadlockError`` once no rank can go on.
    """
    num_stages = schedule.placement.num_stages
    done: set[Action] = set()
    waiting: dict[Action, list[int]] = {}
    position = [0] * schedule.num_ranks
    runnable = deque(range(schedule.num_ranks))
    while runnable:
        rank = runnable.popleft()
        order = schedule.orders[rank]
        while position[rank] < len(order):
            action = order[position[rank]]
            needs = inputs(action, num_stages)
            if not done.issuperset(needs):
                missing = next(need for need in needs if need not in done)
                waiting.setdefault(missing, []).append(rank)
                break
            position[rank] += 1
            made = result(action)
            done.add(made)
            runnable.extend(waiting.pop(made, ()))
            yield rank, action
    if waiting:
        raise DeadlockError(
            schedule,
            {rank: schedule.orders[rank][position[rank]] for rank in sorted(chain(*waiting.values()))},
        )


def _like(action: Action, kind: Kind, *, stage: int | None = None) -> Action:
    """Of the same microbatch and pipe; ``replace`` would take most of the time of a validation."""
    return Action(kind, action.stage if stage is None else stage, action.microbatch, action.pipe)
