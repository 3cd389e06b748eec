"""What the parts of a step take on each device, wherever that is known from: measured, or estimated.

actions      F, B, W and BW of a stage: a line through its number of layers
ends         head, embedding, and the embedding's gradient of one microbatch, which all ranks do together
messages     to a neighbour; and what each tick costs besides
once a step  weights before the ticks, sums over dp after them, the optimizer
"""

from collections.abc import Mapping
from typing import NamedTuple


class Line(NamedTuple):
    """Seconds of an action over n layers: ``fixed + each n``."""

    fixed: float
    each: float

    def at(self, num_layers: float) -> float:
        return self.fixed + self.each * num_layers


class PartSeconds(NamedTuple):
    """Seconds on one device; the kinds of action are F, B, W and BW.

    recomputation, tensor, shards: of ``actions``, for each layer and microbatch what B does again, what
        devices of a rank tell each other, and what ZeRO 2 and 3 gather and scatter over ``dp``.
    transfer: of a message; where it cannot travel beside the work it is part of ``tick``, and this is 0.
    before, reduction, update: once a step.
    sharing: ``sharing[k - 1]`` is how many times as long an action takes when k devices act at once.
    """

    actions: Mapping[str, Line]
    recomputation: float
    tensor: float
    shards: float
    head: float
    embedding: float
    unembedding: float
    transfer: float
    tick: float
    before: float
    reduction: float
    update: float
    sharing: tuple[float, ...] = (1.0,)

    @property
    def has_own_hardware(self) -> bool:
        """Whether devices do not slow each other down."""
        return all(times == 1 for times in self.sharing)

    def slowed(self, num_acting: int) -> float:
        """How many times as long an action takes when so many devices act; beyond what was measured, too."""
        known = len(self.sharing)
        if num_acting <= known:
            return self.sharing[max(num_acting, 1) - 1]
        return self.sharing[-1] * (1.0 if self.has_own_hardware else num_acting / known)
