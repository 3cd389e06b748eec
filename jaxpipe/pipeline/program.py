"""What is settled before anything is traced: a model, a schedule, and how and where it runs."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxpipe.lowering.segments import Segment, specialised, whole
from jaxpipe.lowering.table import BACKWARD, BACKWARD_WEIGHT, TickTable
from jaxpipe.pipeline.contract import StageContract
from jaxpipe.pipeline.layout import Layout
from jaxpipe.pipeline.remat import Remat


class Settings(NamedTuple):
    """How the program runs, besides the schedule.

    compute_dtype: of weights and messages inside the step; accumulators are fp32 whatever it is.
    head_tokens: the head runs over this many tokens at a time, or fewer: it bounds the logits.
    fill: what buffers hold before anything is written to them; tests fill them with NaN.
    specialised: a program for each segment of the table (lowering/segments.py), not one for all rows.
    """

    remat: Remat = "full"
    compute_dtype: jnp.dtype = jnp.float32
    head_tokens: int = 4096
    fill: float = 0.0
    specialised: bool = False


class Program(NamedTuple):
    """What is settled before tracing: a model's two functions, a schedule, and where things lie."""

    contract: StageContract
    table: TickTable
    layout: Layout
    mesh: Mesh
    settings: Settings = Settings()

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes over which values differ, ``dp`` first, behind it those of one pipeline's devices.

        ``dp`` is none of them where there is one pipeline and nothing is sharded: XLA would copy all
        gradients to add them up over one device.
        """
        is_copied = self.mesh.shape["dp"] > 1 or self.layout.sharding.zero > 0
        return ("dp", *self.pipeline_axes) if is_copied else self.pipeline_axes

    @property
    def pipeline_axes(self) -> tuple[str, ...]:
        """Those of one pipeline's devices; ``tp`` is none of them where a rank is one device."""
        return ("pp", "tp") if self.layout.sharding.tp > 1 else ("pp",)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The parts of the table that are programs of their own."""
        return specialised(self.table) if self.settings.specialised else whole(self.table)

    @property
    def kinds(self) -> frozenset[int]:
        """The kinds of action that the table holds; the others cost nothing, not even compile time."""
        return frozenset(np.unique(self.table.ranks.kind).tolist())

    @property
    def has_backward(self) -> bool:
        return bool(self.kinds & {BACKWARD, BACKWARD_WEIGHT})

    @property
    def split_remat(self) -> Remat:
        """What B does again: nothing where R has done it."""
        if not self.table.recomputes:
            return self.settings.remat
        assert self.settings.remat == "full", f"a table with R is for remat full, not {self.settings.remat}"
        return "none"
