"""What is said of a step whose loss or gradients are not finite: in which leaves, in backward order.

That order is head, final, the last layer and so on to the first, embedding. What goes wrong in one layer's
backward pass spoils that layer and those before it, so the first name says where to look; what goes wrong
in the forward pass spoils the loss, and with it everything.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

_NAMES_SHOWN = 3


def describe_non_finite(
    names: Sequence[str], squares: Float[np.ndarray, " sums"], *, loss: float, grad_norm: float
) -> str:
    """Loss and norm, and in which leaves the gradient is not finite; ``names`` says of what each sum is."""
    return f"loss {loss} and gradient norm {grad_norm}; {_where(names, squares, grad_norm)}"


def non_finite_leaves(names: Sequence[str], squares: Float[np.ndarray, " sums"]) -> list[str]:
    """The names whose sum of squares is not finite, each once, in the order of the backward pass."""
    assert len(names) == len(squares), (len(names), len(squares))
    found = dict.fromkeys(
        name for name, is_fine in zip(names, np.isfinite(squares), strict=True) if not is_fine
    )
    return sorted(found, key=_backward_order)


def _where(names: Sequence[str], squares: Float[np.ndarray, " sums"], grad_norm: float) -> str:
    if math.isfinite(grad_norm):
        return "the gradients are finite"
    found, num_leaves = non_finite_leaves(names, squares), len(set(names))
    if not found:
        return f"the sum of squares of each of {num_leaves} gradients is finite, that of all together is not"
    shown = ", ".join(found[:_NAMES_SHOWN])
    if len(found) > _NAMES_SHOWN:
        shown += f" and {len(found) - _NAMES_SHOWN} more"
    return (
        f"the sum of squares is not finite in {len(found)} of {num_leaves} gradients, in the order of the "
        f"backward pass: {shown}"
    )


def _backward_order(name: str) -> tuple[int, int]:
    group, _, rest = name.partition(".")
    if group == "layers":
        return 2, -int(rest.partition(".")[0])
    return {"head": 0, "final": 1, "embedding": 3}[group], 0
