"""Run a tick table in plain Python, on names instead of numbers: the proof that it is right.

The machine below follows the docstring of ``table`` to the letter. A value is named after what it is
for, and whoever reads a slot says which value it must find there. A read takes the value out of its
slot, so a write onto a value that nobody has read yet, and a value that nobody ever reads, both show.
Only B, which may look at what its F has left for W, leaves that where it is.
With R, it is R that leaves both, from what F has left for it alone.
A cell that means nothing must hold 0 or the trash slot, so that no wrong cell can hide.

Also proved: each rank runs its actions in the schedule's order, hence sums its gradients in that
order, and every microbatch counts once in every stage, in the head and in the embedding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from jaxpipe.lowering.segments import Segment, TickUse, whole
from jaxpipe.lowering.table import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    IDLE,
    NONE,
    RECOMPUTE,
    WEIGHT,
    TickTable,
)
from jaxpipe.schedules import Action, Kind, Schedule, fuse_backward, split_backward

KINDS = {
    FORWARD: Kind.F,
    BACKWARD: Kind.B,
    WEIGHT: Kind.W,
    BACKWARD_WEIGHT: Kind.BW,
    RECOMPUTE: Kind.R,
}

READS = {
    IDLE: {},
    FORWARD: {"inbox_read": "x"},
    BACKWARD: {"inbox_read": "dy", "residual_slot": "residual"},
    WEIGHT: {"input_slot": "linear_input", "weight_slot": "weight_input"},
    BACKWARD_WEIGHT: {"inbox_read": "dy", "residual_slot": "residual", "input_slot": "linear_input"},
    RECOMPUTE: {"recompute_slot": "layer_input"},
}
LOOKS_AT = {BACKWARD: {"input_slot": "linear_input"}}
WRITES = {
    IDLE: {},
    FORWARD: {"residual_slot": "residual", "input_slot": "linear_input"},
    BACKWARD: {"weight_slot": "weight_input"},
    WEIGHT: {},
    BACKWARD_WEIGHT: {},
    RECOMPUTE: {"residual_slot": "residual", "input_slot": "linear_input"},
}
WRITES_FOR_RECOMPUTE = {FORWARD: {"recompute_slot": "layer_input"}}
"""In a table with R."""


class Value(NamedTuple):
    """``name`` is x (a stage's input), dy (the gradient of its output), or what READS says.

    The x of the stage behind the last one goes to the head, the dy of stage -1 to the embedding.
    """

    name: str
    pipe: int
    stage: int
    microbatch: int


Slots = list[Value | None]


@dataclass
class _Machine:
    """The slots of each rank, what its last action computed, and a record of what was added up, in order."""

    table: TickTable
    inbox: list[Slots]
    residual: list[Slots]
    input: list[Slots]
    weight: list[Slots]
    recompute: list[Slots]
    outputs: Slots
    ran: list[list[Action]]
    head: list[list[int]]
    embedding: list[list[int]]


def replay(table: TickTable, schedule: Schedule, segments: Sequence[Segment] | None = None) -> None:
    """Prove that ``table`` computes ``schedule``, with its backward split or fused.

    segments: run its rows as these do, which have no code for what they do not use.

    Raises ``AssertionError`` naming tick, rank, slot, the value expected and the one found.
    """
    num_ranks, num_pipes = table.placement.num_ranks, table.placement.num_pipes
    machine = _Machine(
        table=table,
        inbox=[[None] * (table.num_inbox_slots + 1) for _ in range(num_ranks)],
        residual=[[None] * (table.num_residual_slots + 1) for _ in range(num_ranks)],
        input=[[None] * (table.num_input_slots + 1) for _ in range(num_ranks)],
        weight=[[None] * (table.num_weight_slots + 1) for _ in range(num_ranks)],
        recompute=[[None] * (table.num_recompute_slots + 1) for _ in range(num_ranks)],
        outputs=[None] * num_ranks,
        ran=[[] for _ in range(num_ranks)],
        head=[[] for _ in range(num_pipes)],
        embedding=[[] for _ in range(num_pipes)],
    )
    for tick, use in enumerate(_uses(table, whole(table) if segments is None else segments)):
        _run_ends(machine, tick, use)
        outputs = [_run_action(machine, tick, use, rank=rank) for rank in range(num_ranks)]
        _deliver(machine, tick, use, outputs=outputs)
        machine.outputs = outputs
    _check_all_was_read(machine)
    _check_orders(machine, schedule)


def _uses(table: TickTable, segments: Sequence[Segment]) -> list[TickUse]:
    """What each row may use; the segments must follow each other, and hold whole periods."""
    uses: list[TickUse] = []
    for segment in segments:
        num_rows = segment.stop - segment.start
        if segment.start != len(uses) or num_rows <= 0 or num_rows % segment.period:
            _fail(f"segment {segment.start} to {segment.stop}", "does not follow the one before it")
        uses += segment.uses * (num_rows // segment.period)
    if len(uses) != table.num_ticks:
        _fail("all segments", f"have {len(uses)} rows of {table.num_ticks}")
    return uses


def _run_ends(machine: _Machine, tick: int, use: TickUse) -> None:
    placement, ends = machine.table.placement, machine.table.ends
    last = placement.num_stages - 1
    for pipe in range(placement.num_pipes):
        first_rank, last_rank = placement.rank(0, pipe), placement.rank(last, pipe)
        gradient = embedded = None
        for name in ("unembed", "head", "embed"):
            if getattr(ends, name)[tick, pipe] != NONE and pipe not in getattr(use, name):
                _fail(f"tick {tick}, pipe {pipe}, {name}", "its segment does not do it")
        if (microbatch := int(ends.unembed[tick, pipe])) != NONE:
            expected = Value("dy", pipe, -1, microbatch)
            _expect(machine.outputs[first_rank], expected, at=f"tick {tick}, rank {first_rank}, unembed")
            machine.embedding[pipe].append(microbatch)
        if (microbatch := int(ends.head[tick, pipe])) != NONE:
            expected = Value("x", pipe, last + 1, microbatch)
            _expect(machine.outputs[last_rank], expected, at=f"tick {tick}, rank {last_rank}, head")
            machine.head[pipe].append(microbatch)
            gradient = Value("dy", pipe, last, microbatch)
        if (microbatch := int(ends.embed[tick, pipe])) != NONE:
            embedded = Value("x", pipe, 0, microbatch)
            if ends.embed_slot[tick, pipe] == machine.table.num_inbox_slots:
                _fail(f"tick {tick}, rank {first_rank}, embed_slot", f"{embedded} would be thrown away")
        at = f"tick {tick}, rank {last_rank}, head_slot"
        _write(machine.inbox[last_rank], ends.head_slot[tick, pipe], value=gradient, at=at)
        at = f"tick {tick}, rank {first_rank}, embed_slot"
        _write(machine.inbox[first_rank], ends.embed_slot[tick, pipe], value=embedded, at=at)


def _run_action(machine: _Machine, tick: int, use: TickUse, *, rank: int) -> Value | None:
    """Run one rank's action; what it computes for another stage, if anything."""
    columns, placement = machine.table.ranks, machine.table.placement
    kind, pipe, chunk, microbatch = (int(column[tick, rank]) for column in columns[:4])
    at = f"tick {tick}, rank {rank}"
    if (
        kind not in READS
        or pipe not in range(placement.num_pipes)
        or chunk not in range(placement.num_chunks)
    ):
        _fail(at, f"kind {kind}, pipe {pipe}, chunk {chunk} do not exist")
    if kind not in use.kinds:
        _fail(at, f"its segment has no action of kind {kind}")
    if kind == IDLE and (pipe, chunk, microbatch) != (0, 0, 0):
        _fail(at, f"idle, but pipe {pipe}, chunk {chunk}, microbatch {microbatch} are not all 0")
    stage = placement.stage(rank, chunk, pipe)
    writes = WRITES | WRITES_FOR_RECOMPUTE if machine.table.recomputes else WRITES
    for column, slots in (
        ("inbox_read", machine.inbox[rank]),
        ("residual_slot", machine.residual[rank]),
        ("input_slot", machine.input[rank]),
        ("weight_slot", machine.weight[rank]),
        ("recompute_slot", machine.recompute[rank]),
    ):
        slot = getattr(columns, column)[tick, rank]
        if name := READS[kind].get(column) or LOOKS_AT.get(kind, {}).get(column):
            value = Value(name, pipe, stage, microbatch)
            _read(slots, slot, expected=value, at=f"{at}, {column}")
            if column not in READS[kind]:
                slots[slot] = value
        else:
            name = writes[kind].get(column)
            left = Value(name, pipe, stage, microbatch) if name else None
            _write(slots, slot, value=left, at=f"{at}, {column}")
    if kind == IDLE:
        return None
    machine.ran[rank].append(Action(KINDS[kind], stage, microbatch, pipe))
    if kind in (WEIGHT, RECOMPUTE):
        return None
    return (
        Value("x", pipe, stage + 1, microbatch)
        if kind == FORWARD
        else Value("dy", pipe, stage - 1, microbatch)
    )


def _deliver(machine: _Machine, tick: int, use: TickUse, *, outputs: Slots) -> None:
    """Each rank hears those neighbours whose hop there is, and itself without a detour."""
    leaving = outputs if machine.table.transfer_ticks == 1 else machine.outputs
    from_below = {receiver: leaving[sender] for sender, receiver in use.up}
    from_above = {receiver: leaving[sender] for sender, receiver in use.down}
    for rank, inbox in enumerate(machine.inbox):
        for column, arriving in (
            ("from_below", from_below.get(rank)),
            ("from_above", from_above.get(rank)),
            ("from_self", outputs[rank] if use.to_self else None),
        ):
            slot = getattr(machine.table.ranks, column)[tick, rank]
            _write(inbox, slot, value=arriving, at=f"tick {tick}, rank {rank}, {column}")


def _read(slots: Slots, slot: int, *, expected: Value, at: str) -> None:
    if slot not in range(len(slots) - 1):
        _fail(at, f"slot {slot} is no slot, {expected} expected")
    _expect(slots[slot], expected, at=f"{at}, slot {slot}")
    slots[slot] = None


def _write(slots: Slots, slot: int, *, value: Value | None, at: str) -> None:
    trash = len(slots) - 1
    if slot == trash:
        return
    if slot not in range(trash):
        _fail(at, f"slot {slot} does not exist, the trash slot is {trash}")
    if value is None:
        _fail(at, f"slot {slot} would be written, but there is nothing to write")
    if slots[slot] is not None:
        _fail(at, f"slot {slot}: {value} would overwrite {slots[slot]}, which nobody has read")
    slots[slot] = value


def _expect(found: Value | None, expected: Value, *, at: str) -> None:
    if found != expected:
        _fail(at, f"expected {expected}, found {found}")


def _check_all_was_read(machine: _Machine) -> None:
    for name in ("inbox", "residual", "input", "weight", "recompute"):
        for rank, slots in enumerate(getattr(machine, name)):
            for slot, value in enumerate(slots[:-1]):
                if value is not None:
                    _fail(f"rank {rank}, {name} slot {slot}", f"{value} was never read")


def _check_orders(machine: _Machine, schedule: Schedule) -> None:
    """What ran and what was added up is the schedule's, each microbatch once."""
    ran = tuple(map(tuple, machine.ran))
    if ran not in (split_backward(schedule).orders, fuse_backward(schedule).orders):
        _fail("all ranks", f"the actions run are not those of {schedule.name!r} in its order")
    placement = schedule.placement
    for pipe in range(placement.num_pipes):
        last = placement.num_stages - 1
        forwards = _microbatches(ran[placement.rank(last, pipe)], (Kind.F,), stage=last, pipe=pipe)
        backwards = _microbatches(ran[placement.rank(0, pipe)], (Kind.B, Kind.BW), stage=0, pipe=pipe)
        if machine.head[pipe] != forwards:
            _fail(f"pipe {pipe}, head", f"expected microbatches {forwards}, found {machine.head[pipe]}")
        if machine.embedding[pipe] != backwards:
            _fail(f"pipe {pipe}, embedding", f"expected {backwards}, found {machine.embedding[pipe]}")
        for stage in range(placement.num_stages):
            for kinds in ((Kind.F,), (Kind.B, Kind.BW), (Kind.W, Kind.BW), (Kind.R,)):
                counted = _microbatches(ran[placement.rank(stage, pipe)], kinds, stage=stage, pipe=pipe)
                is_due = kinds == (Kind.F,) or (
                    schedule.recomputes if kinds == (Kind.R,) else not schedule.is_forward_only
                )
                due = schedule.microbatches(pipe) if is_due else []
                if sorted(counted) != list(due):
                    _fail(
                        f"pipe {pipe}, stage {stage}",
                        f"{kinds[0]} of microbatches {counted}, not one of each",
                    )


def _microbatches(
    actions: tuple[Action, ...], kinds: tuple[Kind, ...], *, stage: int, pipe: int
) -> list[int]:
    return [
        action.microbatch
        for action in actions
        if action.kind in kinds and (action.stage, action.pipe) == (stage, pipe)
    ]


def _fail(at: str, what: str) -> NoReturn:
    raise AssertionError(f"{at}: {what}")
