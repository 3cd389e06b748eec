"""The tick table: a schedule with its time and memory settled, as plain integers.

The executor scans over the rows of this table, so it is data, not program: compile time and
device memory do not depend on how many rows there are. A tick goes, on every rank at once:

1. ends of the pipe, the same on all ranks: input gradients of the first stage that the previous
   tick computed go into the embedding; outputs of the last stage that the previous tick computed
   go through the head, whose gradient lands in an inbox slot; token embeddings land in an inbox slot;
2. at most one action, which reads the inbox slot ``inbox_read``; ``residual_slot`` passes a value from F to
   B, ``weight_slot`` from B to W, and ``input_slot`` from F to W, or to BW: B may look at it, too. In a table
   with R, F writes only ``recompute_slot``, which R reads, and R writes the other two instead of F;
3. what the action computed leaves for both neighbours (with ``transfer_ticks=2``: what the action
   of the tick before computed); what arrives from rank r-1 and from rank r+1 goes to ``from_below``
   and ``from_above``, what this tick's action computed for the rank itself to ``from_self``.

"No slot" is the index after the last slot. The inbox has a slot there, the trash, so that keeping what
arrives needs no branch; what one action leaves for another of its stage is only touched by actions that
have a slot.
"""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int32

from jaxpipe.schedules import Placement

IDLE, FORWARD, BACKWARD, WEIGHT, BACKWARD_WEIGHT, RECOMPUTE = range(6)

NONE = -1
"""No microbatch, in the columns ``embed``, ``head`` and ``unembed``."""


Column = TypeVar("Column")
"""NumPy's arrays here; in the executor JAX's, or one row's scalars."""


class RankColumns(NamedTuple, Generic[Column]):
    """What each rank does on each tick; every array is int32 ``[ticks, ranks]``."""

    kind: Column
    pipe: Column
    chunk: Column
    microbatch: Column
    inbox_read: Column
    residual_slot: Column
    input_slot: Column
    weight_slot: Column
    recompute_slot: Column
    from_below: Column
    from_above: Column
    from_self: Column


class EndColumns(NamedTuple, Generic[Column]):
    """What all ranks do together at both ends of each pipe; every array is int32 ``[ticks, pipes]``.

    ``embed``, ``head`` and ``unembed`` hold a microbatch or ``NONE``; the slots are inbox slots
    of the rank that holds the first (``embed_slot``) or the last stage (``head_slot``).
    """

    embed: Column
    embed_slot: Column
    head: Column
    head_slot: Column
    unembed: Column


@dataclass(frozen=True)
class TickTable:
    """A lowered schedule. Slot counts leave out the trash; ``num_..._slots`` as an index means none."""

    name: str
    placement: Placement
    num_microbatches: int
    transfer_ticks: int
    ranks: RankColumns[Int32[np.ndarray, "ticks ranks"]]
    ends: EndColumns[Int32[np.ndarray, "ticks pipes"]]
    num_inbox_slots: int
    num_residual_slots: int
    num_input_slots: int
    num_weight_slots: int
    num_recompute_slots: int

    @property
    def recomputes(self) -> bool:
        """Whether recomputation is an action of its own: there is an R for each backward."""
        return self.num_recompute_slots > 0

    @property
    def num_ticks(self) -> int:
        """Rows, the last of which may serve only the ends of the pipe."""
        return self.ranks.kind.shape[0]
