"""The three products of a group of kernels that share their input, alone or shared over ``tp``.

    y = x K          dx = sum of dy K^T          dK = x^T dy

Shared (Shoeybi et al. 2019, "Megatron-LM", section 3), a device holds some columns or some rows of K:

              y                                dx                               dK
    columns   x whole, y its own features      added up over tp                 its own columns
    rows      added up over tp                 dy whole, dx its own features    its own rows

With sequence parallelism (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
Models", section 4.2) what is whole above is split along the sequence between these products: it is gathered
before one, and what is added up is scattered. For dK it is gathered once more rather than kept.

Sums over ``tp`` and over the kernels of a group are fp32. With ``tp`` these run inside ``shard_map``, and
every device of a rank takes part.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpipe.pipeline.contract import Split
from jaxpipe.pipeline.manual_axes import varying, varying_axes

# einsum letters: i features in, o features out; "..." batch and sequence

_SEQUENCE_AXIS = 1
"""Of x and y, which are [batch, sequence, features]."""


class Shared(NamedTuple):
    """How the devices of a rank share a group of kernels; without one, a device has it whole."""

    split: Split
    sequence: bool


def multiply(
    x: Float[Array, "*batch i"], kernels: Mapping[str, Float[Array, "i o"]], shared: Shared | None
) -> dict[str, Float[Array, "*batch o"]]:
    """``{name: x @ kernel}``."""
    if shared is not None and shared.split == "rows":
        return {
            name: _add_up(
                jnp.einsum("...i,io->...o", x, kernel, preferred_element_type=jnp.float32), x.dtype, shared
            )
            for name, kernel in kernels.items()
        }
    if shared is not None:
        x = _gather(x, shared)
    return {name: jnp.einsum("...i,io->...o", x, kernel) for name, kernel in kernels.items()}


def multiply_back(
    dys: Mapping[str, Float[Array, "*batch o"]],
    kernels: Mapping[str, Float[Array, "i o"]],
    shared: Shared | None,
) -> Float[Array, "*batch i"]:
    """The gradient of ``x`` from those of the products."""
    dtype = next(iter(dys.values())).dtype
    if shared is not None and shared.split == "rows":
        dys = {name: _gather(dy, shared) for name, dy in dys.items()}
    dxs = [
        jnp.einsum("...o,io->...i", dys[name], kernel, preferred_element_type=jnp.float32)
        for name, kernel in kernels.items()
    ]
    dx = functools.reduce(jnp.add, dxs)
    if shared is not None and shared.split == "columns":
        return _add_up(dx, dtype, shared)
    return dx.astype(dtype)


def multiply_weights(
    x: Float[Array, "*batch i"], dys: Mapping[str, Float[Array, "*batch o"]], shared: Shared | None
) -> dict[str, Float[Array, "i o"]]:
    """The gradients of the kernels, fp32."""
    if shared is not None and shared.split == "columns":
        x = _gather(x, shared)
    elif shared is not None:
        dys = {name: _gather(dy, shared) for name, dy in dys.items()}
    return {
        name: jnp.einsum("...i,...o->io", x, dy, preferred_element_type=jnp.float32)
        for name, dy in dys.items()
    }


def _gather(array: Array, shared: Shared) -> Array:
    if not shared.sequence:
        return array
    return jax.lax.all_gather(array, "tp", axis=_SEQUENCE_AXIS, tiled=True)


def _add_up(partial: Float[Array, "..."], dtype: jnp.dtype, shared: Shared) -> Array:
    """The sum over the devices of a rank, still marked as varying: as what it is added to."""
    if shared.sequence:
        total = jax.lax.psum_scatter(partial, "tp", scatter_dimension=_SEQUENCE_AXIS, tiled=True)
    else:
        total = jax.lax.psum(partial, "tp")
    return varying(total.astype(dtype), tuple(varying_axes(partial)))
