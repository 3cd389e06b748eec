"""The schedule of an evaluation."""

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.placement import Placement
from jaxpipe.schedules.schedule import Schedule


def forward_only(placement: Placement, num_microbatches: int) -> Schedule:
    """F alone, for evaluation; the stage nearest to the end goes first, so that little is held."""
    empty = Schedule("forward_only", placement, num_microbatches, ((),) * placement.num_ranks)
    orders: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    waiting: list[set[Action]] = [set() for _ in range(placement.num_ranks)]
    for pipe in range(placement.num_pipes):
        waiting[placement.rank(0, pipe)] |= {Action(Kind.F, 0, k, pipe) for k in empty.microbatches(pipe)}
    while any(waiting):
        ran = []
        for order, ready in zip(orders, waiting, strict=True):
            if ready:
                action = max(ready, key=lambda action: (action.stage, -action.microbatch))
                ready.remove(action)
                order.append(action)
                ran.append(action)
        for action in ran:
            if action.stage + 1 < placement.num_stages:
                following = Action(Kind.F, action.stage + 1, action.microbatch, action.pipe)
                waiting[placement.rank(following.stage, following.pipe)].add(following)
    return Schedule("forward_only", placement, num_microbatches, tuple(map(tuple, orders)))
