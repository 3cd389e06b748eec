"""A schedule: for each rank the order of its actions, and nothing about time."""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.placement import Placement


@dataclass(frozen=True)
class Schedule:
    """``orders[rank]`` is the tuple of that rank's actions, in the order in which it runs them.

    ``num_microbatches`` counts those of all pipes; two pipes share them, ``microbatches(pipe)`` each.
    """

    name: str
    placement: Placement
    num_microbatches: int
    orders: tuple[tuple[Action, ...], ...]

    @property
    def num_ranks(self) -> int:
        return self.placement.num_ranks

    @property
    def is_forward_only(self) -> bool:
        """Whether no rank runs a backward: a program for evaluation."""
        return all(action.kind is Kind.F for _, action in self.actions())

    @property
    def recomputes(self) -> bool:
        """Whether recomputation is an action of its own."""
        return any(action.kind is Kind.R for _, action in self.actions())

    def microbatches(self, pipe: int = 0) -> range:
        """Those that go through ``pipe``: consecutive ones, pipe 0 has the first."""
        num_pipes = self.placement.num_pipes
        return range(
            pipe * self.num_microbatches // num_pipes, (pipe + 1) * self.num_microbatches // num_pipes
        )

    def actions(self) -> Iterator[tuple[int, Action]]:
        """Every ``(rank, action)``, rank by rank."""
        for rank, order in enumerate(self.orders):
            for action in order:
                yield rank, action
