"""The actions F, R, B, W and BW: loops over a stage's layers; a rank that does not act has zero trips.

A loop, because XLA updates a loop's carry in place but copies what passes through a conditional. Two traps:

- XLA moves out of a loop what depends neither on its counter nor on its carry, and then runs it on every
  tick, trips or no trips. So each body first passes its indices, and the slices that it reads, through an
  optimization barrier together with the counters (``tied``).
- On GPU the host reads a dynamic trip count back on every trip. So where all stages are equally long, an
  outer loop of 0 or 1 trips stands around an inner one of static count.

Buffers that a loop writes are its carry; what it only reads it closes over.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from jaxpipe.pipeline.contract import Tree
from jaxpipe.pipeline.products import Shared
from jaxpipe.pipeline.split_vjp import SplitLayer, shared_kernels, weight_gradients


class Work(NamedTuple):
    """What one rank does in one tick, as scalars; ``chunk`` counts on through the pipes (pipes.py)."""

    chunk: Int32[Array, ""]
    microbatch: Int32[Array, ""]
    residual_slot: Int32[Array, ""]
    input_slot: Int32[Array, ""]
    weight_slot: Int32[Array, ""]
    recompute_slot: Int32[Array, ""]


class StageLoops(NamedTuple):
    """How the loops of one rank run: its layers' parameters are ``[pipes * chunks, layers, ...]``.

    layer: of weights that are whole along the residual stream; kernels as ``dense`` takes them.
    shared: how the devices of a rank share each group of kernels.
    gather: from a layer's parameters as they lie to those that ``layer`` takes; it may communicate.
    scatter: from the gradients of a layer's kernels to what is accumulated; it may communicate.
    context: ``microbatch -> (constants, extras)``, the arguments of a layer that are not differentiated.
    shape: batch, sequence, hidden of a layer's input.
    layers_of_chunk: int32 ``[pipes * chunks]``.
    num_layers: the length of every stage, where they are equal, else None.
    """

    layer: Callable[..., Array]
    split: SplitLayer | None
    params: Tree
    shared: Mapping[str, Shared | None]
    gather: Callable[[Tree], Tree]
    scatter: Callable[[Tree], Tree]
    context: Callable[[Array], tuple]
    shape: tuple[int, int, int]
    layers_of_chunk: Int32[Array, " chunks"]
    num_layers: int | None


def run_forward(
    loops: StageLoops,
    acts: Array,
    work: Work,
    x: Float[Array, "batch sequence hidden"],
    residuals: list[Array],
    linear_inputs: Tree,
) -> tuple[Array, list[Array], Tree]:
    """F: ``x`` through the layers of a chunk; what B and W need goes to the residual and the input slot."""

    def body(counters: tuple, carry: tuple[Array, list[Array], Tree]) -> tuple[Array, list[Array], Tree]:
        x, residuals, linear_inputs = carry
        layer, tied_work = tied(counters, (counters[-1], work))
        params = _read_params(loops, counters, tied_work.chunk, layer)
        context = loops.context(tied_work.microbatch)
        if loops.split is None:
            return _plain_forward(loops, params, x, context), residuals, linear_inputs
        y, new, new_inputs = loops.split.forward(params, x, context)
        residuals = _write(residuals, new, tied_work.residual_slot, layer)
        return y, residuals, _write(linear_inputs, new_inputs, tied_work.input_slot, layer)

    return _loop(loops, acts, work, body, (x, residuals, linear_inputs))


def run_forward_for_recompute(
    loops: StageLoops,
    acts: Array,
    work: Work,
    x: Float[Array, "batch sequence hidden"],
    layer_inputs: Array,
) -> tuple[Array, Array]:
    """F where R follows: what it leaves is the input of each layer, in the recompute slot."""

    def body(counters: tuple, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        x, layer_inputs = carry
        layer, tied_work = tied(counters, (counters[-1], work))
        params = _read_params(loops, counters, tied_work.chunk, layer)
        y = _plain_forward(loops, params, x, loops.context(tied_work.microbatch))
        left = x.reshape(layer_inputs.shape[2:])
        return y, _write(layer_inputs, left, tied_work.recompute_slot, layer)

    return _loop(loops, acts, work, body, (x, layer_inputs))


def run_recompute(
    loops: StageLoops,
    acts: Array,
    work: Work,
    layer_inputs: Array,
    residuals: list[Array],
    linear_inputs: Tree,
) -> tuple[list[Array], Tree]:
    """R: each layer of a chunk once more, from the input that F has left; its output is not needed."""

    def body(counters: tuple, carry: tuple[list[Array], Tree]) -> tuple[list[Array], Tree]:
        assert loops.split is not None
        residuals, linear_inputs = carry
        layer, tied_work = tied(counters, (counters[-1], work))
        params = _read_params(loops, counters, tied_work.chunk, layer)
        x = tied(counters, read(layer_inputs, tied_work.recompute_slot, layer)).reshape(loops.shape)
        _, new, new_inputs = loops.split.forward(params, x, loops.context(tied_work.microbatch))
        residuals = _write(residuals, new, tied_work.residual_slot, layer)
        return residuals, _write(linear_inputs, new_inputs, tied_work.input_slot, layer)

    return _loop(loops, acts, work, body, (residuals, linear_inputs))


def run_backward(
    loops: StageLoops,
    acts: Array,
    work: Work,
    dy: Float[Array, "batch sequence hidden"],
    residuals: list[Array],
    linear_inputs: Tree,
    weight_inputs: Tree,
    small_gradients: Tree,
) -> tuple[Array, Tree, Tree]:
    """B: ``dy`` back through the layers of a chunk; what W needs goes to the weight slot."""

    assert loops.split is not None
    looked_at = {group: linear_inputs[group] for group in loops.split.looked_at}

    def body(counters: tuple, carry: tuple[Array, Tree, Tree]) -> tuple[Array, Tree, Tree]:
        dy, weight_inputs, small_gradients = carry
        layer, tied_work, dx, d_small, new = _backward_of_layer(
            loops, counters, work, dy, residuals, looked_at
        )[:5]
        weight_inputs = _write(weight_inputs, new, tied_work.weight_slot, layer)
        return dx, weight_inputs, _add(small_gradients, d_small, tied_work.chunk, layer)

    return _loop(loops, acts, work, body, (dy, weight_inputs, small_gradients))


def run_weight(
    loops: StageLoops,
    acts: Array,
    work: Work,
    linear_inputs: Tree,
    weight_inputs: Tree,
    kernel_gradients: Tree,
) -> Tree:
    """W: the gradients of a chunk's kernels, from what B and F have left for it."""

    def body(counters: tuple, kernel_gradients: Tree) -> Tree:
        layer, tied_work = tied(counters, (counters[-1], work))
        left_by_b = read(weight_inputs, tied_work.weight_slot, layer)
        left_by_f = read(linear_inputs, tied_work.input_slot, layer)
        new = _kernel_gradients(loops, *tied(counters, (left_by_b, left_by_f)))
        return _add(kernel_gradients, new, tied_work.chunk, layer)

    return _loop(loops, acts, work, body, kernel_gradients)


def run_backward_weight(
    loops: StageLoops,
    acts: Array,
    work: Work,
    dy: Float[Array, "batch sequence hidden"],
    residuals: list[Array],
    linear_inputs: Tree,
    gradients: Tree,
) -> tuple[Array, Tree]:
    """BW: B and W of a chunk, layer by layer, without a weight slot."""

    def body(counters: tuple, carry: tuple[Array, Tree]) -> tuple[Array, Tree]:
        dy, gradients = carry
        layer, tied_work, dx, d_small, left_by_b, left_by_f = _backward_of_layer(
            loops, counters, work, dy, residuals, linear_inputs
        )
        new = {"kernels": _kernel_gradients(loops, left_by_b, left_by_f), "small": d_small}
        return dx, _add(gradients, new, tied_work.chunk, layer)

    return _loop(loops, acts, work, body, (dy, gradients))


def _backward_of_layer(
    loops: StageLoops, counters: tuple, work: Work, dy: Array, residuals: list[Array], linear_inputs: Tree
) -> tuple[Array, Work, Array, Tree, Tree, Tree]:
    """The layer, its work, dx, the small gradients, and what B and F leave for W.

    W in the same body gets its inputs through a barrier, so that B has the same bits as without it.
    """
    assert loops.split is not None
    last = loops.layers_of_chunk[work.chunk] - 1 if loops.num_layers is None else loops.num_layers - 1
    layer, work = tied(counters, (last - counters[-1], work))
    params = _read_params(loops, counters, work.chunk, layer)
    saved = tied(counters, read(residuals, work.residual_slot, layer))
    inputs = tied(counters, read(linear_inputs, work.input_slot, layer))
    context = loops.context(work.microbatch)
    dx, d_small, weight_inputs = jax.lax.optimization_barrier(
        loops.split.backward(params, saved, inputs, dy, context)
    )
    return layer, work, dx, d_small, weight_inputs, inputs


def _plain_forward(loops: StageLoops, params: Tree, x: Array, context: tuple) -> Array:
    """A layer that leaves nothing for a backward."""
    return loops.layer(params | {"kernels": shared_kernels(params["kernels"], loops.shared)}, x, *context)


def _read_params(loops: StageLoops, counters: tuple, chunk: Array, layer: Array) -> Tree:
    """The parameters of a layer, gathered where devices hold shards of them: they live for one body."""
    return loops.gather(tied(counters, read(loops.params, chunk, layer)))


def _kernel_gradients(loops: StageLoops, weight_inputs: Tree, linear_inputs: Tree) -> Tree:
    assert loops.split is not None
    factors = loops.split.complete(weight_inputs, linear_inputs)
    return loops.scatter(weight_gradients(factors, loops.shared))


def _loop(loops: StageLoops, acts: Array, work: Work, body: Callable, carry: Tree) -> Tree:
    return over_layers(
        acts, work.chunk, body, carry, layers_of_chunk=loops.layers_of_chunk, num_layers=loops.num_layers
    )


def over_layers(
    acts: Array,
    chunk: Array,
    body: Callable,
    carry: Tree,
    *,
    layers_of_chunk: Int32[Array, " chunks"],
    num_layers: int | None,
) -> Tree:
    """``body((counters), carry)`` once for each layer of the chunk if this rank acts; see ``StageLoops``."""
    if num_layers is None:
        trips = jnp.where(acts, layers_of_chunk[chunk], 0)
        return jax.lax.fori_loop(0, trips, lambda layer, carry: body((layer,), carry), carry)

    def all_layers(turn: Array, carry: Tree) -> Tree:
        return jax.lax.fori_loop(0, num_layers, lambda layer, carry: body((turn, layer), carry), carry)

    return jax.lax.fori_loop(0, acts.astype(jnp.int32), all_layers, carry)


def tied(counters: Tree, tree: Tree) -> Tree:
    """The same values, which XLA now takes to depend on the counters."""
    return jax.lax.optimization_barrier((counters, tree))[1]


def read(tree: Tree, first: Array, layer: Array) -> Tree:
    """``leaf[first, layer]`` of each leaf."""
    return jax.tree.map(lambda leaf: _slice(leaf, first, layer)[0, 0], tree)


def _write(tree: Tree, new: Tree, first: Array, layer: Array) -> Tree:
    """Each leaf with ``new`` at ``[first, layer]``."""
    return jax.tree.map(
        lambda leaf, value: jax.lax.dynamic_update_slice(leaf, value[None, None], _start(leaf, first, layer)),
        tree,
        new,
    )


def _add(tree: Tree, new: Tree, first: Array, layer: Array) -> Tree:
    """Each leaf with ``new`` added at ``[first, layer]``, in the leaf's dtype.

    The slice keeps its two leading dimensions: where it is the whole leaf (one layer a rank), XLA would
    otherwise put the sum elsewhere and copy it back.
    """

    def add(leaf: Array, value: Array) -> Array:
        total = _slice(leaf, first, layer) + value[None, None].astype(leaf.dtype)
        return jax.lax.dynamic_update_slice(leaf, total, _start(leaf, first, layer))

    return jax.tree.map(add, tree, new)


def _slice(leaf: Array, first: Array, layer: Array) -> Array:
    return jax.lax.dynamic_slice(leaf, _start(leaf, first, layer), (1, 1, *leaf.shape[2:]))


def _start(leaf: Array, first: Array, layer: Array) -> tuple:
    return (first, layer, *np.zeros(leaf.ndim - 2, np.int32))
