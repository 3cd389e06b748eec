"""A signal to any of several processes ends all of them after the same step.

Each process is asked after each step, and each batch of an evaluation, by a program of its own: the greatest
number of a signal that any of them has received. Like the metrics it is read one step late, so that neither
the devices nor the host wait for it. One process knows by itself, and runs no such program.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int32

from jaxpipe.training.stopping.interrupt import StopRequest, announce, exit_code


@dataclass
class SharedStop:
    """True when all processes know that one of them has received a signal.

    highest: gives out the program that finds the greatest number that any process has passed.
    announces: whether this process tells of a signal that another one received.
    """

    own: StopRequest
    highest: Callable[[int], Int32[Array, ""]]
    announces: bool
    pending: Int32[Array, ""] | None = None
    agreed: int = 0

    def ask(self) -> None:
        """All processes must ask at the same places. The answer counts at the next call."""
        if self.pending is not None and not self.agreed:
            self.agreed = int(self.pending)
            if self.agreed and self.own.received is None and self.announces:
                announce(self.agreed, "of another process")
        self.pending = self.highest(self.own.received or 0)

    def __bool__(self) -> bool:
        return self.agreed != 0

    @property
    def exit_code(self) -> int:
        """As that of one process that received the signal."""
        return exit_code(self.agreed)


def make_highest(mesh: Mesh) -> Callable[[int], Int32[Array, ""]]:
    """The greatest of the numbers that the processes of the mesh pass; it returns before that is known."""
    shards = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    numbers = jax.ShapeDtypeStruct((mesh.size,), np.int32, sharding=shards)
    jitted = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))
    compiled = jitted.lower(numbers).compile()  # here, and not within the first step

    def highest(number: int) -> Int32[Array, ""]:
        own = np.array([number], np.int32)
        return compiled(jax.make_array_from_callback((mesh.size,), shards, lambda _: own))

    return highest
