"""The sends and receives of a schedule, written out, and a proof that they all meet.

    0SF1        stage 0 sends what 0F1 computed, to the next stage
    1RF1        stage 1 receives it, for 1F1
    1SB0        stage 1 sends the gradient that 1B0 or 1BW0 computed, to the stage before
    0RB0        stage 0 receives it, for 0B0
    0SF1+0RB0   both at once, with one neighbour: SFRB; the other way round SBRF

The least that a transport can do is a rendezvous: nothing is buffered, and a send waits until its receiver
comes to the receive. What gets through then gets through on any other, too. Three ways to order messages are
tried, and the first that cannot block is taken:

single  a receive stands right before the action that needs it, a send right behind the action that made it
pairs   as single, but SF and an RB that follows it are one step if they are of one neighbour, and so are SB
        and RF: in 1F1B both sides have something for each other, and if both sent first, both would wait
ticks   all messages of a rank in one tick are one step, as in a batch of isend and irecv: with chunks, every
        rank of the ring sends its F on before it takes the next one

1F1B of two ranks and four microbatches, rank 0 (pairs):

    0F0 0SF0 0F1 0SF1+0RB0 0BW0 0F2 0SF2+0RB1 0BW1 0F3 0SF3+0RB2 0BW2 0RB3 0BW3
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.dependencies import result
from jaxpipe.schedules.messages import Message, received_for, sent_by
from jaxpipe.schedules.schedule import Schedule
from jaxpipe.schedules.ticks import assign_ticks


class Exchange(NamedTuple):
    """Messages that a rank sends and receives in one step, which ends when all of them are through."""

    sends: tuple[Message, ...] = ()
    receives: tuple[Message, ...] = ()

    @property
    def kind(self) -> str:
        """SF, RF, SB, RB, SFRB or SBRF; ``group`` for any other set of messages."""
        kinds = [f"S{message.source.kind}" for message in self.sends]
        kinds += [f"R{message.source.kind}" for message in self.receives]
        name, neighbors = "".join(kinds), {message.receiver for message in self.sends}
        neighbors |= {message.sender for message in self.receives}
        is_known = name in ("SF", "RF", "SB", "RB", "SFRB", "SBRF") and len(neighbors) == 1
        return name if is_known else "group"

    def __str__(self) -> str:
        sent = (_text(message.source, "S", stage=message.source.stage) for message in self.sends)
        received = (_text(message.source, "R", stage=_reader(message.source)) for message in self.receives)
        return "+".join([*sent, *received])


Program = Sequence[Action | Exchange]
"""What one rank does, in order."""


@dataclass(frozen=True)
class Communicated:
    """``programs[rank]`` is what a rank does; ``grouping`` how its messages had to be ordered."""

    programs: tuple[Program, ...]
    grouping: str


class RendezvousError(ValueError):
    """``waiting`` has, for each rank that can never end, the step at which it waits."""

    def __init__(self, schedule: Schedule, waiting: Mapping[int, Exchange]) -> None:
        where = ", ".join(f"rank {rank} at {exchange}" for rank, exchange in waiting.items())
        super().__init__(
            f"schedule {schedule.name!r} has a deadlock of messages: {where} wait for ever; reorder them"
        )
        self.waiting = waiting


def with_communication(schedule: Schedule) -> Communicated:
    """The schedule with its messages, in the simplest of the three ways that cannot block.

    ``RendezvousError`` if none can; a schedule that ``validate`` passes has one.
    """
    waiting: Mapping[int, Exchange] = {}
    for grouping, programs in _from_simple_to_safe(schedule):
        waiting = stuck(programs)
        if not waiting:
            return Communicated(programs, grouping)
    raise RendezvousError(schedule, waiting)


def _from_simple_to_safe(schedule: Schedule) -> Iterator[tuple[str, tuple[Program, ...]]]:
    single = single_messages(schedule)
    yield "single", single
    yield "pairs", pair_messages(single)
    yield "ticks", group_by_tick(single, assign_ticks(schedule))


def stuck(programs: Sequence[Program]) -> dict[int, Exchange]:
    """Run the programs with every message a rendezvous; for each rank that never ends, where it waits."""
    position = [0] * len(programs)
    missing = [0] * len(programs)
    waiting: dict[tuple[Message, bool], int] = {}
    runnable = deque(range(len(programs)))
    while runnable:
        rank = runnable.popleft()
        program = programs[rank]
        while position[rank] < len(program):
            step = program[position[rank]]
            position[rank] += 1
            if isinstance(step, Action):
                continue
            sides = [(message, True) for message in step.sends]
            sides += [(message, False) for message in step.receives]
            for message, is_send in sides:
                partner = waiting.pop((message, not is_send), None)
                if partner is None:
                    waiting[message, is_send] = rank
                    missing[rank] += 1
                    continue
                missing[partner] -= 1
                if not missing[partner]:
                    runnable.append(partner)
            if missing[rank]:
                break
    return {
        rank: _last_exchange(programs[rank], position[rank]) for rank, count in enumerate(missing) if count
    }


def single_messages(schedule: Schedule) -> tuple[Program, ...]:
    """Each message a step of its own, next to the action that needs or made it."""
    return tuple(tuple(_one_by_one(order, rank, schedule)) for rank, order in enumerate(schedule.orders))


def pair_messages(programs: Sequence[Program]) -> tuple[Program, ...]:
    """Single messages, with SFRB and SBRF where both follow each other."""
    return tuple(tuple(_pair(program)) for program in programs)


def group_by_tick(programs: Sequence[Program], ticks: Mapping[Action, int]) -> tuple[Program, ...]:
    """Single messages, all that leave or reach a rank in a tick in one step behind what it does then.

    ticks: of each action, from ``assign_ticks``.
    """
    sent_at = {result(action): tick for action, tick in ticks.items()}
    return tuple(tuple(_by_tick(program, ticks, sent_at=sent_at)) for program in programs)


def _one_by_one(order: Sequence[Action], rank: int, schedule: Schedule) -> Iterator[Action | Exchange]:
    for action in order:
        if message := received_for(action, rank, schedule.placement):
            yield Exchange(receives=(message,))
        yield action
        if message := sent_by(action, rank, schedule.placement):
            yield Exchange(sends=(message,))


def _by_tick(
    program: Program, ticks: Mapping[Action, int], *, sent_at: Mapping[Action, int]
) -> Iterator[Action | Exchange]:
    actions: dict[int, Action] = {}
    messages: dict[int, Exchange] = {}
    for step in program:
        if isinstance(step, Action):
            actions[ticks[step]] = step
        else:
            (message,) = step.sends + step.receives
            tick = sent_at[message.source]
            sends, receives = messages.get(tick, Exchange())
            messages[tick] = Exchange(sends + step.sends, receives + step.receives)
    for tick in sorted(actions.keys() | messages.keys()):
        if tick in actions:
            yield actions[tick]
        if tick in messages:
            yield messages[tick]


def _pair(program: Program) -> Iterator[Action | Exchange]:
    held: Exchange | None = None
    for step in program:
        if isinstance(step, Exchange):
            both = Exchange((held or step).sends, step.receives)
            if held and both.kind in ("SFRB", "SBRF"):
                yield both
                held = None
                continue
        if held:
            yield held
            held = None
        if isinstance(step, Exchange) and step.sends:
            held = step
        else:
            yield step
    if held:
        yield held


def _last_exchange(program: Program, behind: int) -> Exchange:
    step = program[behind - 1]
    assert isinstance(step, Exchange)
    return step


def _reader(source: Action) -> int:
    return source.stage + (1 if source.kind is Kind.F else -1)


def _text(source: Action, way: str, *, stage: int) -> str:
    return f"{stage}{way}{source.kind}{source.microbatch}" + "'" * source.pipe
