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
from jax.extend.core import ClosedJaxpr

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

_SIGMOID = frozenset({"logistic"})
"""SwiGLU keeps gate alone: to do its sigmoid again takes no longer than to write and read it."""


def _is_kept(primitive: Any, *operands: Any, **_: Any) -> bool:
    """The policy of ``none``; what is made of integers alone, as masks are, is made again."""
    is_new = primitive.name not in _MOVES | _ARITHMETIC | _SIGMOID
    return is_new and any(jnp.issubdtype(operand.dtype, jnp.inexact) for operand in operands)


def is_made_again(closed: ClosedJaxpr, output: int) -> bool:
    """Whether B, with ``none``, has or makes an output of a layer anyway, moved or not.

    So it has what a function with a VJP of its own gives: flash attention keeps that for its gradient.
    """
    made_by = _made_by(closed.jaxpr, closed.jaxpr.outvars[output])[0]
    if made_by is None:
        return False
    operands = (operand.aval for operand in made_by.invars)
    has_own_vjp = made_by.primitive.name == "custom_vjp_call"
    return has_own_vjp or not _is_kept(made_by.primitive, *operands, **made_by.params)


def _made_by(jaxpr: Any, value: Any) -> tuple[Any, Any]:
    """The equation that makes a value, and what it is called there; no equation makes an argument."""
    for equation in jaxpr.eqns:
        if value not in equation.outvars:
            continue
        if equation.primitive.name in _MOVES:
            return _made_by(jaxpr, equation.invars[0])
        if equation.primitive.name == "jit":
            inner = equation.params["jaxpr"].jaxpr
            made_by, source = _made_by(inner, inner.outvars[equation.outvars.index(value)])
            if made_by is None and source in inner.invars:
                return _made_by(jaxpr, equation.invars[inner.invars.index(source)])
            return made_by, source
        return equation, value
    return None, value


POLICIES: dict[Remat, Callable[..., bool]] = {
    "none": _is_kept,
    "selective": jax.checkpoint_policies.save_only_these_names(DENSE_OUTPUT),
    "full": jax.checkpoint_policies.nothing_saveable,
}
