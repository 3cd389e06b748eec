"""Rotary position embedding (Su et al. 2021, "RoFormer"), with the scaling of Llama 3.1 or a linear one.

The tables come from the sizes alone, in float64, and are kept in fp32: never a parameter, never bf16,
in which position 15,962 would become 15,968. Rotation is by halves, as in Hugging Face's weights:
element i turns with element i + head_dim / 2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from jaxpipe.models.llama_config import RopeScaling


class RopeTables(NamedTuple):
    """cos and sin of position times frequency, fp32; of all sequences of a batch, or of each its own."""

    cos: Float[Array, "*batch s half"]
    sin: Float[Array, "*batch s half"]


def rope_frequencies(
    head_dim: int, *, theta: float, scaling: RopeScaling | None = None
) -> Float[np.ndarray, " half"]:
    """Radians per position of each pair, float64.

    linear scaling divides all by ``factor`` (Chen et al. 2023, "Extending Context Window of Large Language
    Models via Positional Interpolation").
    llama3 scaling divides slow frequencies by ``factor``, keeps fast ones, and goes over smoothly where
    the original context holds between ``low_freq_factor`` and ``high_freq_factor`` turns.
    """
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    if scaling is None or scaling.rope_type == "default":
        return frequencies
    if scaling.rope_type == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_max_position_embeddings * frequencies / (2 * np.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def rope_tables(frequencies: Float[np.ndarray, " half"], sequence_length: int) -> RopeTables:
    """Tables for positions 0 .. ``sequence_length`` - 1."""
    angles = np.arange(sequence_length)[:, None] * frequencies
    return RopeTables(jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32))


def tables_at(tables: RopeTables, positions: Int32[Array, "b s"]) -> RopeTables:
    """``[b, s, half]``: the rows of tables ``[length, half]`` for positions below that length."""
    return RopeTables(*(table.at[positions].get(mode="promise_in_bounds") for table in tables))


def tables_from(tables: RopeTables, first: Int32[Array, ""], length: int) -> RopeTables:
    """Those of ``length`` positions from ``first`` on, which may be traced."""
    return RopeTables._make(jax.lax.dynamic_slice_in_dim(table, first, length) for table in tables)


def rotate(x: Float[Array, "b s h d"], tables: RopeTables) -> Float[Array, "b s h d"]:
    """``x`` turned by its position, in fp32, and back in its own dtype."""
    cos, sin = (jnp.expand_dims(table, -2 if table.ndim == 3 else (0, -2)) for table in tables)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
