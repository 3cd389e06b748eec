"""The sends and receives that a schedule needs, and whether they can all meet.

Sends follow from what an action computes, receives from what an action needs, each on its own, so
that one without the other shows. A rank's program is its actions with, behind those of each tick, one
group of all messages that leave or reach it in that tick: SF, RF, SB, RB of one tick are one exchange,
as 1F1B fuses a send of F with a receive of B. In a rendezvous a message is through when both sides
have come to it, a group when all of its messages are.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxpipe.schedules.actions import Action
from jaxpipe.schedules.dependencies import consumer, inputs, result
from jaxpipe.schedules.schedule import Schedule


class Message(NamedTuple):
    """What ``source`` computed, on its way from one rank to another."""

    source: Action
    sender: int
    receiver: int

    def __str__(self) -> str:
        return f"{self.source} from rank {self.sender} to rank {self.receiver}"


class Exchange(NamedTuple):
    """One group of messages of one rank."""

    sends: frozenset[Message]
    receives: frozenset[Message]


Program = Sequence[Action | Exchange]
"""What one rank does, in order."""


def sends(schedule: Schedule) -> Counter[Message]:
    """The messages to other ranks that come of what the actions compute."""
    placement = schedule.placement
    found: Counter[Message] = Counter()
    for rank, action in schedule.actions():
        reader = consumer(action, placement.num_stages)
        if reader and placement.rank(reader.stage, reader.pipe) != rank:
            found[Message(result(action), rank, placement.rank(reader.stage, reader.pipe))] += 1
    return found


def receives(schedule: Schedule) -> Counter[Message]:
    """The messages from other ranks that the actions need."""
    placement = schedule.placement
    found: Counter[Message] = Counter()
    for rank, action in schedule.actions():
        for need in inputs(action, placement.num_stages):
            sender = placement.rank(need.stage, need.pipe)
            if need.stage != action.stage and sender != rank:
                found[Message(need, sender, rank)] += 1
    return found


def programs(schedule: Schedule, ticks: Mapping[Action, int]) -> list[Program]:
    """Each rank's program, from the tick of each action (``assign_ticks`` with ``transfer_ticks=1``)."""
    sent_at = {result(action): tick for action, tick in ticks.items()}
    steps: list[dict[tuple[int, int], Action | Exchange]] = [
        {(ticks[action], 0): action for action in order} for order in schedule.orders
    ]
    leaving: dict[tuple[int, int], set[Message]] = {}
    arriving: dict[tuple[int, int], set[Message]] = {}
    for message in sends(schedule):
        leaving.setdefault((message.sender, sent_at[message.source]), set()).add(message)
    for message in receives(schedule):
        arriving.setdefault((message.receiver, sent_at[message.source]), set()).add(message)
    for rank, tick in leaving.keys() | arriving.keys():
        group = Exchange(frozenset(leaving.get((rank, tick), ())), frozenset(arriving.get((rank, tick), ())))
        steps[rank][tick, 1] = group
    return [[own[when] for when in sorted(own)] for own in steps]


def stuck_in_rendezvous(programs: Sequence[Program]) -> dict[int, Exchange]:
    """Run the programs; for each rank that never ends, the group in which it waits."""
    position = [0] * len(programs)
    posted_sends: set[Message] = set()
    posted_receives: set[Message] = set()
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while position[rank] < len(program):
                step = program[position[rank]]
                if isinstance(step, Exchange):
                    posted_sends |= step.sends
                    posted_receives |= step.receives
                    if not (step.sends <= posted_receives and step.receives <= posted_sends):
                        break
                position[rank] += 1
                moved = True
    waiting = {
        rank: program[position[rank]]
        for rank, program in enumerate(programs)
        if position[rank] < len(program)
    }
    return {rank: step for rank, step in waiting.items() if isinstance(step, Exchange)}
