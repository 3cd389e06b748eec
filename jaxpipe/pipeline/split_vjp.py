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
identity finds them, and no weight is ever stored. ``jax.checkpoint`` chooses what the rest is (remat.py).

W reads x where it lies. With ``none`` F leaves an x that costs a product or the like (``linear_inputs``), and
that has no dummy: B neither keeps nor passes on a second copy. Any other x, as a norm's output, B makes again
from what it keeps, and hands on with the dys.

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
from jaxpipe.pipeline.remat import DENSE_OUTPUT, POLICIES, Remat, is_made_again


def dense(
    x: Float[Array, "*batch i"],
    kernels: "Mapping[str, Float[Array, 'i o']] | SharedKernels | Tapped | _Recorder",
) -> dict[str, Float[Array, "*batch o"]]:
    """``{name: x @ kernel}`` for kernels that share their input: all products with weights go here."""
    ys = multiply(x, kernels, None) if isinstance(kernels, Mapping) else kernels.multiply(x)
    return {name: checkpoint_name(y, DENSE_OUTPUT) for name, y in ys.items()}


@functools.partial(jax.tree_util.register_dataclass, data_fields=["kernels"], meta_fields=["shared"])
@dataclass(frozen=True)
class SharedKernels:
    """A group of kernels, and how the devices of a rank share it; where no backward follows."""

    kernels: Mapping[str, Array]
    shared: Shared | None

    def multiply(self, x: Array) -> dict[str, Array]:
        return multiply(x, self.kernels, self.shared)


def shared_kernels(
    kernels: Mapping[str, Mapping[str, Array]], shared: Mapping[str, Shared | None]
) -> dict[str, SharedKernels]:
    """A layer's kernels, each group with how it is shared: as ``dense`` takes them."""
    return {group: SharedKernels(kernel, shared[group]) for group, kernel in kernels.items()}


class WeightInputs(NamedTuple):
    """What B leaves for W, of one group of kernels: x ``[..., in]`` and of each kernel dy ``[..., out]``.

    x is None where F has left it, or where another group has the same.
    """

    x: Array | None
    dys: Mapping[str, Array]


class Factors(NamedTuple):
    """What W multiplies, of one group of kernels."""

    x: Array
    dys: Mapping[str, Array]


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["kernels", "dummies"], meta_fields=["shared"]
)
@dataclass(frozen=True)
class Tapped:
    """A group of kernels with dummies whose cotangents are x, if it has a dummy, and the dys."""

    kernels: Mapping[str, Array]
    dummies: WeightInputs
    shared: Shared | None

    def multiply(self, x: Array) -> dict[str, Array]:
        return _tapped_multiply(x, self)


@jax.custom_vjp
def _tapped_multiply(x: Array, tapped: Tapped) -> dict[str, Array]:
    return multiply(x, tapped.kernels, tapped.shared)


def _tapped_multiply_forward(x: Array, tapped: Tapped) -> tuple[dict[str, Array], tuple]:
    saved = None if tapped.dummies.x is None else x
    return multiply(x, tapped.kernels, tapped.shared), (saved, SharedKernels(tapped.kernels, tapped.shared))


def _tapped_multiply_backward(saved: tuple, dys: dict[str, Array]) -> tuple[Array, Tapped]:
    x, group = saved
    unused = jax.tree.map(jnp.zeros_like, group.kernels)
    dx = multiply_back(dys, group.kernels, group.shared)
    return dx, Tapped(unused, WeightInputs(x, dys), group.shared)


_tapped_multiply.defvjp(_tapped_multiply_forward, _tapped_multiply_backward)


def weight_gradients(
    factors: Mapping[str, Factors], shared: Mapping[str, Shared | None] | None = None
) -> dict[str, dict[str, Float[Array, "i o"]]]:
    """The gradient of every kernel of a layer, in fp32: the action W."""
    return {
        group: multiply_weights(x, dys, shared[group] if shared else None)
        for group, (x, dys) in factors.items()
    }


@dataclass(frozen=True)
class SplitLayer:
    """A layer, split: ``forward`` and ``backward`` may be called in different loops of one program.

    residuals: shapes of what ``forward`` leaves for ``backward``.
    linear_inputs: shapes of what it leaves for W, and for B if that needs it, too; by group of kernels.
    weight_inputs: shapes of what ``backward`` leaves for W.
    """

    residuals: list[jax.ShapeDtypeStruct]
    linear_inputs: dict[str, jax.ShapeDtypeStruct]
    weight_inputs: dict[str, WeightInputs]
    _function: Callable[..., tuple[Array, dict[str, Array]]]
    _treedef: Any
    _sources: list["_Source"]
    _owners: dict[str, str]

    def forward(self, params: Tree, x: Array, context: tuple) -> tuple[Array, list[Array], dict[str, Array]]:
        """``y, residuals, linear_inputs`` of one layer; ``context`` is all that is not differentiated."""
        y, pullback, known, linear_inputs = _pullback(self._function, self.weight_inputs, params, x, context)
        sources, residuals = _sources(jax.tree.leaves(pullback), known, linear_inputs)
        assert sources == self._sources, "the layer's VJP differs from one trace to the next"
        return y, residuals, linear_inputs

    def backward(
        self,
        params: Tree,
        residuals: list[Array],
        linear_inputs: dict[str, Array],
        dy: Array,
        context: tuple,
    ) -> tuple[Array, Tree, dict[str, WeightInputs]]:
        """``dx``, the gradients of ``params["small"]``, and what W needs besides ``linear_inputs``.

        Of these it wants those that ``looked_at`` names.
        """
        stored: dict[str, Any] = {
            "known": _known(params, _dummies(self.weight_inputs), context),
            "residuals": residuals,
            "linear_inputs": linear_inputs,
        }
        leaves = [stored[where][key] for where, key in self._sources]
        dx, weight_inputs, small = jax.tree.unflatten(self._treedef, leaves)(dy)
        return dx, small, weight_inputs

    @property
    def looked_at(self) -> frozenset[str]:
        """The linear inputs that ``backward`` reads, since another derivative wants them, too."""
        return frozenset(str(key) for where, key in self._sources if where == "linear_inputs")

    def complete(
        self, weight_inputs: Mapping[str, WeightInputs], linear_inputs: Mapping[str, Array]
    ) -> dict[str, Factors]:
        """What ``weight_gradients`` reads: the dys of every group with its x."""
        xs = {group: x for group, (x, _) in weight_inputs.items() if x is not None} | dict(linear_inputs)
        return {group: Factors(xs[self._owners[group]], dys) for group, (_, dys) in weight_inputs.items()}


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
    alone = shared_kernels(params["kernels"], shared or dict.fromkeys(params["kernels"]))
    shapes, owners, made_again = _probe(layer, params | {"kernels": alone}, x, context)
    by_forward = set(owners.values()) - made_again if remat == "none" else set()
    by_backward = set(owners.values()) - by_forward
    weight_inputs = {
        group: WeightInputs(x if group in by_backward else None, ys) for group, (x, ys) in shapes.items()
    }

    def tapped_layer(
        x: Array, dummies: dict[str, WeightInputs], params: Tree, context: tuple
    ) -> tuple[Array, dict[str, Array]]:
        tapped = {
            group: Tapped(params["kernels"][group], dummies[group], alone[group].shared) for group in dummies
        }
        y, calls = _recorded(layer, tapped, params["small"], x, context)
        return y, {group: calls[group].x for group in sorted(by_forward)}

    function = jax.checkpoint(tapped_layer, policy=POLICIES[remat])
    found: dict[str, Any] = {}

    def trace(params: Tree, x: Array, context: tuple) -> tuple[list[Array], dict[str, Array]]:
        _, pullback, known, linear_inputs = _pullback(function, weight_inputs, params, x, context)
        leaves, found["treedef"] = jax.tree.flatten(pullback)
        found["sources"], residuals = _sources(leaves, known, linear_inputs)
        return residuals, linear_inputs

    residuals, linear_inputs = jax.eval_shape(trace, params, x, context)
    return SplitLayer(
        residuals, linear_inputs, weight_inputs, function, found["treedef"], found["sources"], owners
    )


def _pullback(
    function: Callable[..., tuple[Array, dict[str, Array]]],
    weight_inputs: dict[str, WeightInputs],
    params: Tree,
    x: Array,
    context: tuple,
) -> tuple[Array, Any, list[Array], dict[str, Array]]:
    """``y``, its VJP with respect to x, dummies and small parameters, the known arrays, linear inputs."""
    dummies = _dummies(weight_inputs)

    def differentiated(
        x: Array, dummies: dict[str, WeightInputs], small: Tree
    ) -> tuple[Array, dict[str, Array]]:
        return function(x, dummies, {"kernels": params["kernels"], "small": small}, context)

    y, pullback, linear_inputs = jax.vjp(differentiated, x, dummies, params["small"], has_aux=True)
    return y, pullback, _known(params, dummies, context), linear_inputs


def _known(params: Tree, dummies: Tree, context: tuple) -> list[Array]:
    """What both F and B have at hand, in a fixed order."""
    return jax.tree.leaves((params, dummies, context))


class _Source(NamedTuple):
    where: Literal["known", "residuals", "linear_inputs"]
    key: int | str


def _sources(
    leaves: list[Array], known: list[Array], linear_inputs: dict[str, Array]
) -> tuple[list[_Source], list[Array]]:
    """Where each leaf is found, and what is nowhere else: the residuals, each once."""
    places = {id(array): _Source("known", index) for index, array in enumerate(known)}
    for group, array in linear_inputs.items():
        places.setdefault(id(array), _Source("linear_inputs", group))
    residuals: list[Array] = []
    for leaf in leaves:
        if id(leaf) not in places:
            places[id(leaf)] = _Source("residuals", len(residuals))
            residuals.append(leaf)
    return [places[id(leaf)] for leaf in leaves], residuals


def _dummies(weight_inputs: dict[str, WeightInputs]) -> dict[str, WeightInputs]:
    return jax.tree.map(zeros_like_struct, weight_inputs)


class _Call(NamedTuple):
    """What went into and came out of one ``dense``."""

    x: Array
    ys: Mapping[str, Array]


@dataclass(frozen=True)
class _Recorder:
    """A group of kernels that writes down the x and the ys of its call."""

    kernels: SharedKernels | Tapped
    group: str
    calls: dict[str, _Call]

    def multiply(self, x: Array) -> dict[str, Array]:
        assert self.group not in self.calls, f"a layer may call dense only once on the kernels {self.group!r}"
        ys = self.kernels.multiply(x)
        self.calls[self.group] = _Call(x, ys)
        return ys


def _recorded(
    layer: Callable[..., Array],
    kernels: Mapping[str, SharedKernels | Tapped],
    small: Tree,
    x: Array,
    context: tuple,
) -> tuple[Array, dict[str, _Call]]:
    """``y`` of a layer, and of each group of kernels x and ys."""
    calls: dict[str, _Call] = {}
    recorders = {group: _Recorder(kernels, group, calls) for group, kernels in kernels.items()}
    y = layer({"kernels": recorders, "small": small}, x, *context)
    unused = set(kernels) - set(calls)
    assert not unused, f"the layer never calls dense on its kernels {sorted(unused)}"
    return y, {group: calls[group] for group in kernels}


def _probe(
    layer: Callable[..., Array], params: Tree, x: Array, context: tuple
) -> tuple[dict[str, _Call], dict[str, str], set[str]]:
    """Shapes of x and ys of each group of kernels; which group's x is its x, the first of those alike; and
    of these first ones those whose x can be made again."""
    owners: dict[str, str] = {}

    def run(params: Tree, x: Array, context: tuple) -> tuple[dict[str, Array], dict[str, _Call]]:
        _, calls = _recorded(layer, params["kernels"], params["small"], x, context)
        first = {id(call.x): group for group, call in reversed(calls.items())}
        owners.update({group: first[id(call.x)] for group, call in calls.items()})
        return {group: calls[group].x for group in sorted(first.values())}, calls

    closed, (xs, shapes) = jax.make_jaxpr(run, return_shape=True)(params, x, context)
    return shapes, owners, {group for index, group in enumerate(xs) if is_made_again(closed, index)}
