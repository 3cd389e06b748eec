"""What is searched: one placement, its microbatches, costs and limits, as lists of numbers.

A search runs millions of actions, so here an action is a number,

    (kind x num_stages + stage) x num_microbatches + microbatch,    kind 0 for F, 1 for B, 2 for W,

and all that the inner loops ask of it is in a list. An order is a list of such numbers, for each rank one. BW
does not occur: B and W one after the other send the gradient earlier and are never slower.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.auto.memory import Memory, changes
from jaxpipe.schedules.costs import Costs, with_ends
from jaxpipe.schedules.placement import Placement
from jaxpipe.schedules.schedule import Schedule
from jaxpipe.schedules.ticks import split_backward

NOTHING = -1
"""Where there is no action."""

KINDS = (Kind.F, Kind.B, Kind.W)

Orders = list[list[int]]


class Timing(NamedTuple):
    """How ranks wait for each other: the arguments of ``simulate`` but costs.

    fuse_backward: in the lowered program (``sync="neighbor"``), run B and its W in one tick where they follow
    each other, as ``lower`` does if told to.
    """

    transfer: float = 0.0
    sync: str = "async"
    transfer_ticks: int = 1
    fuse_backward: bool = False


@dataclass(frozen=True, eq=False)
class Problem:
    """A single pipe to be scheduled; equal to none but itself, so that what was made for it can be kept.

    costs: of each stage. cost[action]: its seconds, in the model of ``timing``.
    source[action]: the action on another rank whose result it needs; reader[action]: the reverse; or NOTHING.
    rank[action], stages[rank]: where things are; stages in the order of chunks.
    change: what F, B and W add to what their rank holds, of at most ``limit`` (infinite without a limit).
    num_per_kind: actions of each kind, so numbers below it are F, and from twice it on W.
    """

    placement: Placement
    num_microbatches: int
    costs: Costs
    timing: Timing
    memory: Memory | None
    cost: Sequence[float]
    source: Sequence[int]
    reader: Sequence[int]
    rank: Sequence[int]
    stages: Sequence[Sequence[int]]
    change: tuple[float, float, float]
    limit: float
    num_ranks: int
    num_stages: int
    num_per_kind: int


def make_problem(
    placement: Placement,
    num_microbatches: int,
    *,
    costs: Costs,
    timing: Timing,
    memory: Memory | None,
) -> Problem:
    """``costs`` are those of ``share_costs``."""
    num_stages = placement.num_stages
    timed = with_ends(costs, num_stages) if timing.sync == "async" else costs
    per_stage = [as_tuple(value, num_stages) for value in (timed.F, timed.B, timed.W)]
    ranks = placement.stage_ranks[0]
    queues = [(kind, stage) for kind in range(3) for stage in range(num_stages)]
    source = [NOTHING] * (len(queues) * num_microbatches)
    reader = list(source)
    for kind, stage in queues[: 2 * num_stages]:
        before = stage - 1 if kind == 0 else stage + 1
        if 0 <= before < num_stages and ranks[before] != ranks[stage]:
            for microbatch in range(num_microbatches):
                here = (kind * num_stages + stage) * num_microbatches + microbatch
                there = (kind * num_stages + before) * num_microbatches + microbatch
                source[here], reader[there] = there, here
    change = (1.0, 0.0, -1.0)
    if memory is not None:
        change = tuple(changes(memory, placement.num_chunks)[kind] for kind in KINDS)  # type: ignore[assignment]
    return Problem(
        placement=placement,
        num_microbatches=num_microbatches,
        costs=costs,
        timing=timing,
        memory=memory,
        cost=[per_stage[kind][stage] for kind, stage in queues for _ in range(num_microbatches)],
        source=source,
        reader=reader,
        rank=[ranks[stage] for _, stage in queues for _ in range(num_microbatches)],
        stages=[[s for s in range(num_stages) if ranks[s] == rank] for rank in range(placement.num_ranks)],
        change=change,
        limit=float("inf") if memory is None else memory.limit - memory.weights,
        num_ranks=placement.num_ranks,
        num_stages=num_stages,
        num_per_kind=num_stages * num_microbatches,
    )


def share_costs(costs: Costs, placement: Placement) -> Costs:
    """Costs of each stage: a single number is that of a rank's whole share, of which a chunk costs 1/v."""
    num_stages, num_chunks = placement.num_stages, placement.num_chunks

    def shared(value: float | tuple[float, ...]) -> tuple[float, ...]:
        return value if isinstance(value, tuple) else (value / num_chunks,) * num_stages

    shares = {kind: shared(getattr(costs, kind)) for kind in ("F", "B", "W", "R")}
    return replace(costs, **shares)  # type: ignore[arg-type]


def as_tuple(value: float | tuple[float, ...], num_stages: int) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,) * num_stages


def one_by_one(problem: Problem) -> Orders:
    """One microbatch after the other, of each B its W at once: slow, but it fits wherever anything does."""
    m, per_kind = problem.num_microbatches, problem.num_per_kind
    return [
        [
            action
            for microbatch in range(m)
            for action in (
                *(stage * m + microbatch for stage in stages),
                *(kind * per_kind + stage * m + microbatch for stage in reversed(stages) for kind in (1, 2)),
            )
        ]
        for stages in problem.stages
    ]


def to_schedule(problem: Problem, orders: Orders, name: str) -> Schedule:
    """The same order as actions."""
    num_stages, num_microbatches = problem.num_stages, problem.num_microbatches

    def action(number: int) -> Action:
        queue, microbatch = divmod(number, num_microbatches)
        kind, stage = divmod(queue, num_stages)
        return Action(KINDS[kind], stage, microbatch)

    return Schedule(
        name, problem.placement, num_microbatches, tuple(tuple(map(action, order)) for order in orders)
    )


def from_schedule(problem: Problem, schedule: Schedule) -> Orders:
    """The same order as numbers, with BW split."""
    num_stages, num_microbatches = problem.num_stages, problem.num_microbatches
    return [
        [
            (KINDS.index(action.kind) * num_stages + action.stage) * num_microbatches + action.microbatch
            for action in order
        ]
        for order in split_backward(schedule).orders
    ]
