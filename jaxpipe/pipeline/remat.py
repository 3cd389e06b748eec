"""What F keeps for B, and what B does again: policies for ``jax.checkpoint`` around a layer.

    none        what costs more than arithmetic on what is kept anyway: products, sums, exponentials
    selective   the outputs of ``dense``: attention, norms and elementwise work are done again
    full        the layer's input

No value is kept twice, neither as it is nor repeated, reshaped or in a wider dtype.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

Remat = Literal["none", "selective", "full"]

DENSE_OUTPUT = "dense_output"
"""The name of what ``dense`` computes."""

_MOVES = frozenset(
    {
        "broadcast_in_dim",
        "concatenate",
        "convert_element_type",
        "gather",
        "pvary",
        "reshape",
        "slice",
        "split",
    }
)
"""What repeats, renames, cuts or widens a value: RoPE's halves and the rows of its tables, the fp32 copy of
what a norm reads."""

_ARITHMETIC = frozenset({"add", "div", "integer_pow", "mul", "neg", "reduce_precision", "square", "sub"})
"""The derivative of a product keeps its factors, so the product would be kept beside them: a norm's
output, the softmax beside its exponentials, silu(gate) beside gate."""


def _is_kept(primitive: Any, *operands: Any, **_: Any) -> bool:
    """The policy of ``none``; what is made of integers alone, as masks are, is made again."""
    is_new = primitive.name not in _MOVES | _ARITHMETIC
    return is_new and any(jnp.issubdtype(operand.dtype, jnp.inexact) for operand in operands)


POLICIES: dict[Remat, Callable[..., bool]] = {
    "none": _is_kept,
    "selective": jax.checkpoint_policies.save_only_these_names(DENSE_OUTPUT),
    "full": jax.checkpoint_policies.nothing_saveable,
}
