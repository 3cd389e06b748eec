"""A schedule becomes a tick table: when each action runs, and where its values lie meanwhile.

    schedule -> ticks (as early as inputs allow) -> lifetimes of values -> slots -> integers

Four buffers on each rank. The inbox holds what an action will read: activations for F, gradients
for B. Residuals live from F to B, what B leaves for the weight gradient from B to W (BW needs none of
these), and what F leaves for it, inputs of linear layers, from F to W or BW. With R a fifth holds the
inputs of layers from F to R, and residuals and inputs of linear layers live since R, not F.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxpipe.lowering.slots import Lifetime, Moment, Phase, allocate
from jaxpipe.lowering.table import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    NONE,
    RECOMPUTE,
    WEIGHT,
    EndColumns,
    RankColumns,
    TickTable,
)
from jaxpipe.schedules import Action, Kind, Placement, Schedule, assign_ticks, split_backward, validate
from jaxpipe.schedules import fuse_backward as fuse
from jaxpipe.schedules.dependencies import consumer, inputs, result

KIND_CODES = {
    Kind.F: FORWARD,
    Kind.R: RECOMPUTE,
    Kind.B: BACKWARD,
    Kind.W: WEIGHT,
    Kind.BW: BACKWARD_WEIGHT,
}


def lower(schedule: Schedule, *, transfer_ticks: int = 1, fuse_backward: bool = False) -> TickTable:
    """The tick table of a schedule.

    ``transfer_ticks=2`` lets messages travel while the next tick computes. BW becomes B and W on two
    ticks; ``fuse_backward`` instead runs B as BW wherever its W follows directly, which saves the slot.
    A schedule of F alone gives the table of an evaluation: loss, but no gradient and no residual.
    ``ValueError`` from ``validate`` if the schedule is broken.
    """
    validate(schedule, forward_only=schedule.is_forward_only)
    program = fuse(schedule) if fuse_backward else split_backward(schedule)
    done = {result(action): tick for action, tick in assign_ticks(program, transfer_ticks).items()}
    inbox = _inbox_lifetimes(program, done, transfer_ticks=transfer_ticks)
    writer = Kind.R if program.recomputes else Kind.F
    slots = _Slots(
        inbox=_allocate(inbox, program.placement),
        residuals=_allocate(_lifetimes_between(done, writer=writer, reader=Kind.B), program.placement),
        weights=_allocate(_lifetimes_between(done, writer=Kind.B, reader=Kind.W), program.placement),
        inputs=_allocate(_input_lifetimes(program, done, writer=writer), program.placement),
        recompute=_allocate(_lifetimes_between(done, writer=Kind.F, reader=Kind.R), program.placement),
        left_by=writer,
    )
    num_ticks = _num_ticks(done, program.placement.num_stages)
    return TickTable(
        name=schedule.name,
        placement=program.placement,
        num_microbatches=program.num_microbatches,
        transfer_ticks=transfer_ticks,
        ranks=_rank_columns(program, done, slots=slots, arrivals=inbox, num_ticks=num_ticks),
        ends=_end_columns(done, slots.inbox, placement=program.placement, num_ticks=num_ticks),
        num_inbox_slots=slots.inbox.count,
        num_residual_slots=slots.residuals.count,
        num_input_slots=slots.inputs.count,
        num_weight_slots=slots.weights.count,
        num_recompute_slots=slots.recompute.count,
    )


@dataclass(frozen=True)
class _Buffer:
    """``slot[action]``: where the value lies that ``action`` reads, or of ``inputs``, that F or R writes.

    ``count`` is also the trash slot.
    """

    slot: Mapping[Action, int]
    count: int

    def find(self, action: Action) -> int:
        return self.slot.get(action, self.count)


@dataclass(frozen=True)
class _Slots:
    """``left_by`` writes residuals and inputs: F, or R."""

    inbox: _Buffer
    residuals: _Buffer
    weights: _Buffer
    inputs: _Buffer
    recompute: _Buffer
    left_by: Kind


def _allocate(lifetimes: Mapping[Action, Lifetime], placement: Placement) -> _Buffer:
    """Slots rank by rank; all ranks have as many as the one that needs most."""
    slots: dict[Action, int] = {}
    count = 0
    for rank in range(placement.num_ranks):
        own = {
            action: lifetime
            for action, lifetime in lifetimes.items()
            if placement.rank(action.stage, action.pipe) == rank
        }
        rank_slots, rank_count = allocate(own)
        slots |= rank_slots
        count = max(count, rank_count)
    return _Buffer(slots, count)


def _inbox_lifetimes(
    program: Schedule, done: Mapping[Action, int], *, transfer_ticks: int
) -> dict[Action, Lifetime]:
    """For each F and B, when its input lands in the inbox and when it is read."""
    placement = program.placement
    lifetimes = {}
    for action, tick in done.items():
        if action.kind in (Kind.W, Kind.R):
            continue
        if action.kind is Kind.F and action.stage == 0:
            written = Moment(tick, Phase.ENDS)
        elif action.kind is Kind.B and action.stage == placement.num_stages - 1:
            written = Moment(done[action._replace(kind=Kind.F)] + 1, Phase.ENDS)
        else:
            source = inputs(action, placement.num_stages)[-1]
            is_own = placement.rank(source.stage, source.pipe) == placement.rank(action.stage, action.pipe)
            written = Moment(done[source] + (0 if is_own else transfer_ticks - 1), Phase.ARRIVAL)
        lifetimes[action] = Lifetime(written, Moment(tick, Phase.ACTION))
    return lifetimes


def _lifetimes_between(done: Mapping[Action, int], *, writer: Kind, reader: Kind) -> dict[Action, Lifetime]:
    """For each ``reader``, the life of what the ``writer`` of the same microbatch left for it."""
    return {
        action: Lifetime(Moment(done[action._replace(kind=writer)], Phase.ACTION), Moment(tick, Phase.ACTION))
        for action, tick in done.items()
        if action.kind is reader
    }


def _input_lifetimes(
    program: Schedule, done: Mapping[Action, int], *, writer: Kind
) -> dict[Action, Lifetime]:
    """For each ``writer``, the life of what it leaves for the W or BW of the same microbatch."""
    lifetimes = {}
    for _, action in program.actions():
        if action.kind in (Kind.W, Kind.BW):
            left_by = action._replace(kind=writer)
            read = Moment(done[result(action)], Phase.ACTION)
            lifetimes[left_by] = Lifetime(Moment(done[left_by], Phase.ACTION), read)
    return lifetimes


def _num_ticks(done: Mapping[Action, int], num_stages: int) -> int:
    """Rows up to the last action, and one more if what that computed goes to an end of the pipe."""
    return max(
        tick + 1 + (action.kind in (Kind.F, Kind.B) and consumer(action, num_stages) is None)
        for action, tick in done.items()
    )


def _rank_columns(
    program: Schedule,
    done: Mapping[Action, int],
    *,
    slots: _Slots,
    arrivals: Mapping[Action, Lifetime],
    num_ticks: int,
) -> RankColumns:
    placement = program.placement
    shape = num_ticks, placement.num_ranks
    numbers = [_filled(0, shape) for _ in range(4)]
    own = (slots.inbox, slots.residuals, slots.inputs, slots.weights, slots.recompute)
    trash = (*own, *[slots.inbox] * 3)
    columns = RankColumns(*numbers, *(_filled(buffer.count, shape) for buffer in trash))
    for rank, action in program.actions():
        at = done[result(action)], rank
        columns.kind[at] = KIND_CODES[action.kind]
        columns.pipe[at] = action.pipe
        columns.chunk[at] = placement.chunk(action.stage, action.pipe)
        columns.microbatch[at] = action.microbatch
        columns.inbox_read[at] = slots.inbox.find(result(action))
        touched = _touched(action.kind, slots.left_by)
        for name, (buffer, kind) in {
            "residual_slot": (slots.residuals, Kind.B),
            "input_slot": (slots.inputs, slots.left_by),
            "weight_slot": (slots.weights, Kind.W),
            "recompute_slot": (slots.recompute, Kind.R),
        }.items():
            if name in touched:
                getattr(columns, name)[at] = buffer.find(action._replace(kind=kind))
    for action, (written, _) in arrivals.items():
        if written.phase is Phase.ARRIVAL:
            source = inputs(action, placement.num_stages)[-1]
            receiver = placement.rank(action.stage, action.pipe)
            column = getattr(columns, _arrives_from(source, placement, receiver=receiver))
            assert column[written.tick, receiver] == slots.inbox.count, "two messages on one hop in one tick"
            column[written.tick, receiver] = slots.inbox.find(action)
    return columns


def _touched(kind: Kind, left_by: Kind) -> frozenset[str]:
    """The columns of slots through which an action gets something from another of its stage, or leaves it."""
    found = {
        Kind.F: {"recompute_slot"},
        Kind.R: {"recompute_slot"},
        Kind.B: {"residual_slot", "input_slot", "weight_slot"},
        Kind.W: {"input_slot", "weight_slot"},
        Kind.BW: {"residual_slot", "input_slot"},
    }[kind]
    return frozenset(found | ({"residual_slot", "input_slot"} if kind is left_by else set()))


def _arrives_from(source: Action, placement: Placement, *, receiver: int) -> str:
    """The column for a message; with two ranks both neighbours are the same one, and below is taken."""
    sender, num_ranks = placement.rank(source.stage, source.pipe), placement.num_ranks
    if sender == receiver:
        return "from_self"
    if receiver == (sender + 1) % num_ranks:
        return "from_below"
    assert receiver == (sender - 1) % num_ranks, f"{source} would travel from rank {sender} to {receiver}"
    return "from_above"


def _end_columns(
    done: Mapping[Action, int], inbox: _Buffer, *, placement: Placement, num_ticks: int
) -> EndColumns:
    shape = num_ticks, placement.num_pipes
    columns = EndColumns(
        embed=_filled(NONE, shape),
        embed_slot=_filled(inbox.count, shape),
        head=_filled(NONE, shape),
        head_slot=_filled(inbox.count, shape),
        unembed=_filled(NONE, shape),
    )
    for action, tick in done.items():
        if action.kind is Kind.F and action.stage == 0:
            _use_end(columns.embed, (tick, action.pipe), microbatch=action.microbatch)
            columns.embed_slot[tick, action.pipe] = inbox.find(action)
        if action.kind is Kind.F and action.stage == placement.num_stages - 1:
            _use_end(columns.head, (tick + 1, action.pipe), microbatch=action.microbatch)
            columns.head_slot[tick + 1, action.pipe] = inbox.find(action._replace(kind=Kind.B))
        if action.kind is Kind.B and action.stage == 0:
            _use_end(columns.unembed, (tick + 1, action.pipe), microbatch=action.microbatch)
    return columns


def _use_end(column: np.ndarray, at: tuple[int, int], *, microbatch: int) -> None:
    assert column[at] == NONE, (
        f"microbatches {column[at]} and {microbatch} need one end of a pipe in tick {at[0]}"
    )
    column[at] = microbatch


def _filled(value: int, shape: tuple[int, int]) -> np.ndarray:
    return np.full(shape, value, np.int32)
