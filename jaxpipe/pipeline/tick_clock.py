"""When each part of a tick ran, by the host's clock: marks behind the parts of ``run_tick``.

    mark 0  ends of the pipe  mark 1  action  mark 2  exchange  mark 3, which is mark 0 of the next tick

A mark is a call of the host, so a step with marks is slower; only one that is asked for has them. It changes
no bit of the results.

A mark must come after all that stands before it, and before all that stands behind it. Nothing but data says
so to XLA, which takes barriers out before it orders a program: so the call reads a number of each buffer, and
what the next part reads, its row of the table and the message, depends on the call's answer. Messages that
travel while a tick computes (``transfer_ticks=2``) travel after it in a step with marks.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Bool, Int32

from jaxpipe.lowering.table import RankColumns
from jaxpipe.pipeline.buffers import Buffers
from jaxpipe.pipeline.contract import Tree
from jaxpipe.pipeline.manual_axes import varying, varying_axes
from jaxpipe.pipeline.tick import run_tick

MARKS = ("start", "ends", "action", "exchange")
"""What has just ended, or begins, at each mark of a tick."""

NANOSECONDS = 1_000_000_000


def mark_start(buffers: Buffers, rows: Tree) -> tuple[Tree, Int32[Array, " 2"]]:
    """The rows of the table, which nobody reads before the stamp that comes with them."""
    stamp = _stamp(buffers)
    return _after(stamp, rows), stamp


def run_timed_tick(*arguments: Any, **named: Any) -> tuple[Buffers, Int32[Array, "3 2"]]:
    """The same as ``run_tick``, and the stamps of the three marks behind its parts."""
    stamps: list[Array] = []

    def mark(buffers: Buffers, rank: RankColumns) -> tuple[Buffers, RankColumns]:
        stamps.append(stamp := _stamp(buffers))
        travels = _after(stamp, (buffers.message, buffers.travelling))
        return buffers._replace(message=travels[0], travelling=travels[1]), _after(stamp, rank)

    return run_tick(*arguments, **named, mark=mark), jnp.stack(stamps)


def with_starts(began: Int32[Array, " 2"], stamps: Int32[Array, "ticks 3 2"]) -> Int32[Array, "ticks 4 2"]:
    """The stamps of all four ``MARKS``: a tick starts where the one before has ended."""
    starts = jnp.concatenate([began[None], stamps[:-1, -1]])
    return jnp.concatenate([starts[:, None], stamps], axis=1)


def of_all_ranks(
    stamps: Int32[Array, "ticks marks 2"], axes: tuple[str, ...], *, num_ranks: int
) -> Int32[Array, "ticks ranks marks 2"]:
    """The stamps of the first device of each rank, on every device; ``axes`` are those of the mesh."""
    others = tuple(axis for axis in axes if axis != "pp")
    is_told = (jnp.arange(num_ranks) == jax.lax.axis_index("pp")) & (jax.lax.axis_index(others) == 0)
    return jax.lax.psum(jnp.where(is_told[None, :, None, None], stamps[:, None], 0), axes)


def to_nanoseconds(stamps: np.ndarray) -> np.ndarray:
    """``[ticks, ranks, marks]`` in 64 bits; JAX itself counts in 32."""
    return stamps[..., 0].astype(np.int64) * NANOSECONDS + stamps[..., 1]


def _stamp(buffers: Buffers) -> Int32[Array, " 2"]:
    """Seconds and nanoseconds of the host's clock when ``buffers`` are computed.

    One number of each field is enough: all that a part writes of it, it writes in one loop.
    """
    fields = [field for part in (buffers, buffers.ends) for field in part]
    leaves = [leaf for field in fields for leaf in jax.tree.leaves(field)[:1] if leaf.size]
    read = jnp.stack([leaf[(0,) * leaf.ndim].astype(jnp.float32) for leaf in leaves])
    stamp = io_callback(_clock, jax.ShapeDtypeStruct((2,), jnp.int32), read)
    return varying(stamp, tuple(varying_axes(read)))


def _after(stamp: Int32[Array, " 2"], tree: Tree) -> Tree:
    """The same values, but only XLA does not know that a clock never shows less than 0."""
    never: Bool[Array, ""] = stamp[0] < 0
    return jax.tree.map(lambda leaf: jnp.where(never, jnp.zeros_like(leaf), leaf), tree)


def _clock(_: Any) -> np.ndarray:
    return np.array(divmod(time.monotonic_ns(), NANOSECONDS), np.int32)
