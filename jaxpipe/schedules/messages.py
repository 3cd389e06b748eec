"""The messages that a schedule needs: one for each result that is computed on one rank and needed on another.

Sends follow from what an action computes, receives from what an action needs, each on its own, so that one
without the other shows.
"""

from collections import Counter
from typing import NamedTuple

from jaxpipe.schedules.actions import Action
from jaxpipe.schedules.dependencies import consumer, inputs, result
from jaxpipe.schedules.placement import Placement
from jaxpipe.schedules.schedule import Schedule


class Message(NamedTuple):
    """What ``source`` computed, on its way from one rank to another."""

    source: Action
    sender: int
    receiver: int

    def __str__(self) -> str:
        return f"{self.source} from rank {self.sender} to rank {self.receiver}"


def sent_by(action: Action, rank: int, placement: Placement) -> Message | None:
    """The message that leaves ``rank`` once it has run ``action``, if another rank needs the result."""
    reader = consumer(action, placement.num_stages)
    if reader is None or (receiver := placement.rank(reader.stage, reader.pipe)) == rank:
        return None
    return Message(result(action), rank, receiver)


def received_for(action: Action, rank: int, placement: Placement) -> Message | None:
    """The message that ``rank`` needs from another before it runs ``action``."""
    for need in inputs(action, placement.num_stages):
        if need.stage != action.stage and (sender := placement.rank(need.stage, need.pipe)) != rank:
            return Message(need, sender, rank)
    return None


def sends(schedule: Schedule) -> Counter[Message]:
    """The messages to other ranks that come of what the actions compute."""
    found = (sent_by(action, rank, schedule.placement) for rank, action in schedule.actions())
    return Counter(message for message in found if message)


def receives(schedule: Schedule) -> Counter[Message]:
    """The messages from other ranks that the actions need."""
    found = (received_for(action, rank, schedule.placement) for rank, action in schedule.actions())
    return Counter(message for message in found if message)
