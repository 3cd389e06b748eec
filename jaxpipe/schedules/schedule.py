"""A schedule: for each rank the order of its actions, and nothing about time."""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpipe.schedules.actions import Action
from jaxpipe.schedules.placement import Placement


@dataclass(frozen=True)
class Schedule:
    """``orders[rank]`` is the tuple of that rank's actions, in the order in which it runs them."""

    name: str
    placement: Placement
    num_microbatches: int
    orders: tuple[tuple[Action, ...], ...]

    @property
    def num_ranks(self) -> int:
        return self.placement.num_ranks

    def actions(self) -> Iterator[tuple[int, Action]]:
        """Every ``(rank, action)``, rank by rank."""
        for rank, order in enumerate(self.orders):
            for action in order:
                yield rank, action
