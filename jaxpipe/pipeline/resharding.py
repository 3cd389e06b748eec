"""From the layout of the ranks to the canonical one and back, on the devices that hold the parameters.

Left to automatic partitioning, picking layers that lie on other ranks means that every device gets all of
them. Here each device gives every rank a part of each layer's features and receives the same part of all
other layers: one all-to-all, after which picking layers is local. Of a leaf, on one device of p ranks:

    stage       [1, chunks, layers, features]            its layers, whole
    exchanged   [p, chunks, layers, features / p]        all layers, a p-th of each
    canonical   [num_layers, features / p]               in model order, without padding

The vocabulary goes the same way, from some rows to some of ``hidden`` of all rows, over the ranks and ``tp``.
No device holds more than its share; values are moved, nothing is computed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from jaxpipe.pipeline.contract import VOCABULARY_GROUPS, Tree
from jaxpipe.pipeline.layout import (
    Layout,
    cut_vocabulary,
    pad_vocabulary,
    pick_layers,
    place_layers,
    to_canonical_layout,
)
from jaxpipe.pipeline.sharding import stage_specs, to_shardings


@dataclass(frozen=True)
class Route:
    """How one leaf goes between the layouts.

    stage, canonical: how it is partitioned in each.
    pick, place: to canonical and back, as functions of whole arrays.
    axes: the mesh axes of the exchange, those that share its layers or rows.
    dim: the dimension that the exchange splits, counted from the end; None: there is no exchange, and
        whatever has to move is left to automatic partitioning.
    """

    stage: PartitionSpec
    canonical: PartitionSpec
    pick: Callable[[Array], Array]
    place: Callable[[Array], Array]
    axes: tuple[str, ...] = ()
    dim: int | None = None


def canonical_shardings(canonical: Tree, layout: Layout, mesh: Mesh) -> Tree:
    """Where canonical parameters, or such shapes, lie: ``reshard_to_canonical`` gives them so."""
    return to_shardings(jax.tree.map(lambda route: route.canonical, _routes(canonical, layout, mesh)), mesh)


def reshard_to_canonical(params: Tree, layout: Layout, mesh: Mesh) -> Tree:
    """``to_canonical_layout`` of parameters that lie as ``stage_specs`` says, within ``jit``."""

    def convert(route: Route, leaf: Array) -> Array:
        if route.dim is None:
            return route.pick(leaf)
        dim = route.dim

        def local(leaf: Array) -> Array:
            return route.pick(jax.lax.all_to_all(leaf, route.axes, leaf.ndim + dim, 0, tiled=True))

        return jax.shard_map(local, mesh=mesh, in_specs=route.stage, out_specs=route.canonical)(leaf)

    canonical = jax.eval_shape(partial(to_canonical_layout, layout=layout), params)
    return jax.tree.map(convert, _routes(canonical, layout, mesh), params)


def reshard_to_stage(canonical: Tree, layout: Layout, mesh: Mesh) -> Tree:
    """The inverse: ``to_stage_layout`` of parameters that lie as ``canonical_shardings`` says."""

    def convert(route: Route, leaf: Array) -> Array:
        if route.dim is None:
            return route.place(leaf)
        dim = route.dim

        def local(leaf: Array) -> Array:
            placed = route.place(leaf)
            return jax.lax.all_to_all(placed, route.axes, 0, placed.ndim + dim, tiled=True)

        return jax.shard_map(local, mesh=mesh, in_specs=route.canonical, out_specs=route.stage)(leaf)

    return jax.tree.map(convert, _routes(canonical, layout, mesh), canonical)


def _routes(canonical: Tree, layout: Layout, mesh: Mesh) -> Tree:
    """The route of each leaf."""
    layers = partial(
        _route,
        mesh=mesh,
        num_leading=3,
        in_place=layout.is_in_model_order,
        pick=partial(pick_layers, layout=layout),
        place=partial(place_layers, layout=layout),
    )
    vocabulary = partial(
        _route,
        mesh=mesh,
        num_leading=1,
        in_place=layout.padded_vocab_size == layout.vocab_size,
        pick=partial(cut_vocabulary, layout=layout),
        place=partial(pad_vocabulary, layout=layout),
    )
    specs = stage_specs(canonical, layout.sharding)
    routes = {group: jax.tree.map(_stay, specs[group], is_leaf=_is_spec) for group in canonical}
    routes["layers"] = jax.tree.map(layers, specs["layers"], canonical["layers"], is_leaf=_is_spec)
    for group in VOCABULARY_GROUPS:
        if group in canonical:
            routes[group] = jax.tree.map(vocabulary, specs[group], canonical[group], is_leaf=_is_spec)
    return routes


def _stay(spec: PartitionSpec) -> Route:
    return Route(spec, spec, lambda leaf: leaf, lambda leaf: leaf)


def _route(
    stage: PartitionSpec,
    canonical: Array,
    *,
    mesh: Mesh,
    num_leading: int,
    in_place: bool,
    pick: Callable[[Array], Array],
    place: Callable[[Array], Array],
) -> Route:
    """Of a leaf whose stage layout has ``num_leading`` dimensions where the canonical one has one.

    in_place: each device holds in either layout the same layers or rows, so that nothing moves.
    """
    axes = _axes(stage[0])
    num_features = len(canonical.shape) - 1
    features = [_axes(entry) for entry in stage[num_leading:]]
    features += [()] * (num_features - len(features))
    if in_place:
        return Route(stage, PartitionSpec(stage[0], *map(_entry, features)), pick, place)
    for number, (size, shared) in enumerate(zip(canonical.shape[1:], features, strict=True)):
        if size % math.prod(mesh.shape[axis] for axis in shared + axes) == 0:
            # Each device splits what it holds of the dimension: the axes of the exchange are the inner ones.
            features[number] = shared + axes
            spec = PartitionSpec(None, *map(_entry, features))
            return Route(stage, spec, pick, place, axes, number - num_features)
    return Route(stage, _spread(canonical.shape, mesh), pick, place)


def _spread(shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Each axis of the mesh along the first free dimension that divides: no device keeps it all."""
    entries: list[str | None] = [None] * len(shape)
    for axis in ("pp", "tp", "dp"):
        size = mesh.shape.get(axis, 1)
        free = (dim for dim, length in enumerate(shape) if entries[dim] is None and length % size == 0)
        if size > 1 and (dim := next(free, None)) is not None:
            entries[dim] = axis
    return PartitionSpec(*entries)


def _axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes of one entry of a partition."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...] | None:
    """The inverse, written as JAX writes it."""
    return axes if len(axes) > 1 else next(iter(axes), None)


def _is_spec(leaf: object) -> bool:
    return isinstance(leaf, PartitionSpec)
