"""The training state, and its two layouts: of the ranks while training, canonical on disk.

The canonical state does not know about the mesh or the schedule: any run reads it (pipeline/layout.py).
Conversion copies values and computes nothing, so a state comes back to the bit.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpipe.pipeline.contract import Tree
from jaxpipe.pipeline.layout import Layout
from jaxpipe.pipeline.resharding import canonical_shardings, reshard_to_canonical, reshard_to_stage
from jaxpipe.pipeline.sharding import Sharding, stage_specs, to_shardings
from jaxpipe.training.global_arrays import to_host
from jaxpipe.training.optimizer import AdamW, init_moments


class TrainState(NamedTuple):
    """fp32 parameters and moments in stage layout; ``moments.count`` is the number of updates.

    That is the number of steps done less those that were skipped (optimizer.py).
    """

    params: Tree
    moments: optax.ScaleByAdamState


def init_state(init_params: Callable[[], Tree], settings: AdamW, *, layout: Layout, mesh: Mesh) -> TrainState:
    """A new state, made on the devices that keep it.

    ``init_params`` gives canonical parameters. They are computed as such and moved afterwards: compiled
    together with the layout, the last bit of a random number could depend on it.
    """
    shardings = canonical_shardings(jax.eval_shape(init_params), layout, mesh)
    canonical = jax.jit(init_params, out_shardings=shardings)()

    def place(canonical: Tree) -> TrainState:
        params = reshard_to_stage(canonical, layout, mesh)
        return TrainState(params, init_moments(settings, params))

    state = state_shardings(jax.eval_shape(place, canonical), mesh, layout.sharding)
    return jax.jit(place, out_shardings=state)(canonical)


def state_shardings(state: TrainState, mesh: Mesh, sharding: Sharding) -> TrainState:
    """Where each leaf of a state in stage layout lies."""
    specs = stage_specs(state.params, sharding)
    moments = optax.ScaleByAdamState(count=PartitionSpec(), mu=specs, nu=specs)
    return to_shardings(TrainState(specs, moments), mesh)


def make_to_canonical(state: TrainState, *, layout: Layout, mesh: Mesh) -> jax.stages.Wrapped:
    """Turns a state shaped like ``state`` into what checkpoints hold: ``{"params", "mu", "nu", "count"}``."""

    def convert(state: TrainState) -> Tree:
        trees = {"params": state.params, "mu": state.moments.mu, "nu": state.moments.nu}
        canonical = {name: reshard_to_canonical(tree, layout, mesh) for name, tree in trees.items()}
        return canonical | {"count": state.moments.count}

    shapes = jax.eval_shape(convert, state)
    return jax.jit(convert, out_shardings=_checkpoint_shardings(shapes, layout, mesh))


def make_from_canonical(canonical: Tree, *, layout: Layout, mesh: Mesh) -> Callable[[Tree], TrainState]:
    """The inverse, for canonical states shaped like ``canonical``: they lie as ``canonical_template`` says.

    What is still on the host is put there.
    """

    def convert(canonical: Tree) -> TrainState:
        params, mu, nu = (reshard_to_stage(canonical[name], layout, mesh) for name in ("params", "mu", "nu"))
        return TrainState(params, optax.ScaleByAdamState(canonical["count"], mu, nu))

    before = _checkpoint_shardings(canonical, layout, mesh)
    after = state_shardings(jax.eval_shape(convert, canonical), mesh, layout.sharding)
    return jax.jit(convert, in_shardings=(before,), out_shardings=after)


def from_canonical(canonical: Tree, *, layout: Layout, mesh: Mesh) -> TrainState:
    """The state that ``make_to_canonical`` turned into this."""
    return make_from_canonical(canonical, layout=layout, mesh=mesh)(canonical)


def canonical_template(
    init_params: Callable[[], Tree], settings: AdamW, *, layout: Layout, mesh: Mesh
) -> Tree:
    """Shapes, dtypes and shardings of a canonical state, to restore one into for ``from_canonical``."""

    def init() -> Tree:
        params = init_params()
        moments = init_moments(settings, params)
        return {"params": params, "mu": moments.mu, "nu": moments.nu, "count": moments.count}

    shapes = jax.eval_shape(init)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        _checkpoint_shardings(shapes, layout, mesh),
    )


def named_params(params: Tree) -> Iterator[tuple[str, np.ndarray]]:
    """``(name, array)`` of canonical parameters in model order, each brought to the host when it is its turn.

    That order: embedding, layer by layer, final, head.
    """
    yield "embedding", to_host(params["embedding"])
    leaves = jax.tree_util.tree_leaves_with_path(params["layers"])
    for index in range(leaves[0][1].shape[0]):
        for path, leaf in leaves:
            yield f"layers.{index}.{_name(path)}", to_host(leaf, index)
    for group in ("final", "head"):
        for path, leaf in jax.tree_util.tree_leaves_with_path(params.get(group, {})):
            yield ".".join(filter(None, (group, _name(path)))), to_host(leaf)


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _checkpoint_shardings(canonical: Tree, layout: Layout, mesh: Mesh) -> Tree:
    """Where each leaf of a canonical state lies: a device's share is as large as in stage layout."""
    params = canonical_shardings(canonical["params"], layout, mesh)
    return {"params": params, "mu": params, "nu": params, "count": NamedSharding(mesh, PartitionSpec())}
