"""The backward pass of one layer in two halves: B without W, W without B.

A linear part of a layer is ``dense(x, kernels)``: several kernels that share the input x. Its backward
pass has two halves, dx = sum of dy @ kernel.T, which the stage before is waiting for, and
dkernel = x.T @ dy, which nobody is waiting for (Qi et al., "Zero Bubble Pipeline Parallelism", section 2).
To part them, B calls the layer with every group of kernels wrapped in ``Tapped``: dummies of the shapes
of x and of each y, whose *cotangents* are x and dy. So one ``jax.vjp`` with respect to the layer's input, the
dummies and the small parameters gives dx, the small gradients and all that W needs; W is then a matrix
product a kernel and never repeats B's chain.

What F leaves for B is the pytree that ``jax.vjp`` returns, flattened, without those leaves that B has
anyway: parameters, constants and the dummies go in as tracers and come back as the same tracers, so
identity finds them, and no weight is ever stored. ``jax.checkpoint`` chooses what the rest is:

    none        whatever JAX would keep, but no broadcast copies of what is smaller
    selective   the outputs of ``dense``: attention, norms and elementwise work are done again
    full        the layer's input

This is the one file that leans on how JAX builds its VJP; `make test-oldest` runs its tests on the oldest
release that we state, and the Makefile says how to run them on the newest.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from jaxpipe.pipeline.contract import Tree
from jaxpipe.pipeline.manual_axes import zeros_like_struct
from jaxpipe.pipeline.products import Shared, multiply, multiply_back, multiply_weights

Remat = Literal["none", "selective", "full"]

_DENSE_OUTPUT = "dense_output"

_COPIES = frozenset({"broadcast_in_dim", "reshape"})
"""What only repeats or renames a value: norm scales, RoPE tables, a zero as large as the scores."""

_POLICIES: dict[Remat, Callable[..., bool]] = {
    "none": lambda primitive, *_, **__: primitive.name not in _COPIES,
    "selective": jax.checkpoint_policies.save_only_these_names(_DENSE_OUTPUT),
    "full": jax.checkpoint_policies.nothing_saveable,
}


def dense(
    x: Float[Array, "*batch i"],
    kernels: "Mapping[str, Float[Array, 'i o']] | SharedKernels | Tapped | _Probe",
) -> dict[str, Float[Array, "*batch o"]]:
    """``{name: x @ kernel}`` for kernels that share their input: all products with weights go here."""
    ys = multiply(x, kernels, None) if isinstance(kernels, Mapping) else kernels.multiply(x)
    return {name: checkpoint_name(y, _DENSE_OUTPUT) for name, y in ys.items()}


@functools.partial(jax.tree_util.register_dataclass, data_fields=["kernels"], meta_fields=["shared"])
@dataclass(frozen=True)
class SharedKernels:
    """A group of kernels, and how the devices of a rank share it; where no backward follows."""

    kernels: Mapping[str, Array]
    shared: Shared | None

    def multiply(self, x: Array) -> dict[str, Array]:
        return multiply(x, self.kernels, self.shared)


class WeightInputs(NamedTuple):
    """What B leaves for W, of one group of kernels: x ``[..., in]`` and of each kernel dy ``[..., out]``."""

    x: Array
    dys: Mapping[str, Array]


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["kernels", "dummies"], meta_fields=["shared"]
)
@dataclass(frozen=True)
class Tapped:
    """A group of kernels with dummies whose cotangents are the x and the dys of this group."""

    kernels: Mapping[str, Array]
    dummies: WeightInputs
    shared: Shared | None

    def multiply(self, x: Array) -> dict[str, Array]:
        return _tapped_multiply(x, self)


@jax.custom_vjp
def _tapped_multiply(x: Array, tapped: Tapped) -> dict[str, Array]:
    return multiply(x, tapped.kernels, tapped.shared)


def _tapped_multiply_forward(x: Array, tapped: Tapped) -> tuple[dict[str, Array], tuple]:
    return multiply(x, tapped.kernels, tapped.shared), (x, SharedKernels(tapped.kernels, tapped.shared))


def _tapped_multiply_backward(saved: tuple, dys: dict[str, Array]) -> tuple[Array, Tapped]:
    x, group = saved
    unused = jax.tree.map(jnp.zeros_like, group.kernels)
    dx = multiply_back(dys, group.kernels, group.shared)
    return dx, Tapped(unused, WeightInputs(x, dys), group.shared)


_tapped_multiply.defvjp(_tapped_multiply_forward, _tapped_multiply_backward)


def weight_gradients(
    inputs: Mapping[str, WeightInputs], shared: Mapping[str, Shared | None] | None = None
) -> dict[str, dict[str, Float[Array, "i o"]]]:
    """The gradient of every kernel of a layer, in fp32: the action W."""
    return {
        group: multiply_weights(x, dys, shared[group] if shared else None)
        for group, (x, dys) in inputs.items()
    }


@dataclass(frozen=True)
class SplitLayer:
    """A layer, split: ``forward`` and ``backward`` may be called in different loops of one program.

    residuals: shapes of what ``forward`` leaves for ``backward``.
    weight_inputs: shapes of what ``backward`` leaves for ``weight_gradients``.
    """

    residuals: list[jax.ShapeDtypeStruct]
    weight_inputs: dict[str, WeightInputs]
    _function: Callable[..., Array]
    _treedef: Any
    _sources: list[tuple[bool, int]]

    def forward(self, params: Tree, x: Array, context: tuple) -> tuple[Array, list[Array]]:
        """``y, residuals`` of one layer; ``context`` is all that is not differentiated."""
        y, pullback, known = _pullback(self._function, self.weight_inputs, params, x, context)
        leaves = jax.tree.leaves(pullback)
        sources = _sources(leaves, known)
        assert sources == self._sources, "the layer's VJP differs from one trace to the next"
        return y, [leaf for leaf, (is_known, _) in zip(leaves, sources, strict=True) if not is_known]

    def backward(
        self, params: Tree, residuals: list[Array], dy: Array, context: tuple
    ) -> tuple[Array, Tree, dict[str, WeightInputs]]:
        """``dx``, the gradients of ``params["small"]``, and what W needs."""
        known = _known(params, _dummies(self.weight_inputs), context)
        leaves = [known[index] if is_known else residuals[index] for is_known, index in self._sources]
        dx, weight_inputs, small = jax.tree.unflatten(self._treedef, leaves)(dy)
        return dx, small, weight_inputs


def split_layer(
    layer: Callable[..., Array],
    params: Tree,
    x: Array,
    *,
    context: tuple,
    remat: Remat,
    shared: Mapping[str, Shared | None] | None = None,
) -> SplitLayer:
    """Split ``layer(params, x, *context) -> y``; the other arguments serve for their shapes only.

    Call it where the loops will run (inside ``shard_map``, if they do): shapes know over which mesh
    axes they vary.

    shared: how the devices of a rank share each group of kernels.
    """
    shared = shared or dict.fromkeys(params["kernels"])
    weight_inputs = _weight_input_shapes(layer, params, x, context, shared)

    def tapped_layer(x: Array, dummies: dict[str, WeightInputs], params: Tree, context: tuple) -> Array:
        kernels = {
            group: Tapped(params["kernels"][group], dummies[group], shared[group]) for group in dummies
        }
        return layer({"kernels": kernels, "small": params["small"]}, x, *context)

    function = jax.checkpoint(tapped_layer, policy=_POLICIES[remat])
    found: dict[str, Any] = {}

    def trace(params: Tree, x: Array, context: tuple) -> list[Array]:
        _, pullback, known = _pullback(function, weight_inputs, params, x, context)
        leaves, found["treedef"] = jax.tree.flatten(pullback)
        found["sources"] = _sources(leaves, known)
        return [leaf for leaf, (is_known, _) in zip(leaves, found["sources"], strict=True) if not is_known]

    residuals = jax.eval_shape(trace, params, x, context)
    return SplitLayer(residuals, weight_inputs, function, found["treedef"], found["sources"])


def _pullback(
    function: Callable[..., Array],
    weight_inputs: dict[str, WeightInputs],
    params: Tree,
    x: Array,
    context: tuple,
) -> tuple[Array, Any, list[Array]]:
    """``y``, its VJP with respect to x, the dummies and the small parameters, and the known arrays."""
    dummies = _dummies(weight_inputs)

    def differentiated(x: Array, dummies: dict[str, WeightInputs], small: Tree) -> Array:
        return function(x, dummies, {"kernels": params["kernels"], "small": small}, context)

    y, pullback = jax.vjp(differentiated, x, dummies, params["small"])
    return y, pullback, _known(params, dummies, context)


def _known(params: Tree, dummies: Tree, context: tuple) -> list[Array]:
    """What both F and B have at hand, in a fixed order."""
    return jax.tree.leaves((params, dummies, context))


def _sources(leaves: list[Array], known: list[Array]) -> list[tuple[bool, int]]:
    """Of each leaf: whether it is known, and its index among the known arrays or among the residuals."""
    index_of_known = {id(array): index for index, array in enumerate(known)}
    sources: list[tuple[bool, int]] = []
    num_residuals = 0
    for leaf in leaves:
        if id(leaf) in index_of_known:
            sources.append((True, index_of_known[id(leaf)]))
        else:
            sources.append((False, num_residuals))
            num_residuals += 1
    return sources


def _dummies(weight_inputs: dict[str, WeightInputs]) -> dict[str, WeightInputs]:
    return jax.tree.map(zeros_like_struct, weight_inputs)


@dataclass(frozen=True)
class _Probe:
    """A group of kernels that writes down the shapes that ``dense`` meets."""

    kernels: Mapping[str, Array]
    shared: Shared | None
    group: str
    shapes: dict[str, WeightInputs]

    def multiply(self, x: Array) -> dict[str, Array]:
        ys = multiply(x, self.kernels, self.shared)
        assert self.group not in self.shapes, (
            f"a layer may call dense only once on the kernels {self.group!r}"
        )
        self.shapes[self.group] = jax.tree.map(_struct, WeightInputs(x, ys))
        return ys


def _weight_input_shapes(
    layer: Callable[..., Array],
    params: Tree,
    x: Array,
    context: tuple,
    shared: Mapping[str, Shared | None],
) -> dict[str, WeightInputs]:
    shapes: dict[str, WeightInputs] = {}

    def probe(params: Tree, x: Array, context: tuple) -> Array:
        kernels = {
            group: _Probe(kernels, shared[group], group, shapes)
            for group, kernels in params["kernels"].items()
        }
        return layer({"kernels": kernels, "small": params["small"]}, x, *context)

    jax.eval_shape(probe, params, x, context)
    unused = set(params["kernels"]) - set(shapes)
    assert not unused, f"the layer never calls dense on its kernels {sorted(unused)}"
    return {group: shapes[group] for group in params["kernels"]}


def _struct(array: Array) -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda array: array, array)
