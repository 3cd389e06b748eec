"""How parameters in stage layout are shared among the devices of the mesh.

    kernels of columns   [ranks, chunks, layers, in, out]     pp, -, -, dp, tp
    kernels of rows      [ranks, chunks, layers, in, out]     pp, -, -, tp, dp
    small of layers      [ranks, chunks, layers, ...]         pp
    vocabulary           [vocabulary, hidden]                 (pp, tp), dp
    final                any                                  -

``dp`` stands there from ZeRO 1 on, and always on the dimension of the residual stream, so that it meets no
other axis. Norm scales stay whole: they are a ten-thousandth of a model. What of this each part of the state
follows (Rajbhandari et al. 2020, "ZeRO", section 5):

    zero                          0       1        2        3
    master weights, moments       whole   shards   shards   shards
    accumulators of gradients     whole   whole    shards   shards
    weights that the ticks read   whole   whole    whole    shards
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from jaxpipe.pipeline.contract import VOCABULARY_GROUPS, Split, Tree
from jaxpipe.pipeline.products import Shared

HIDDEN_AXIS: Mapping[Split, int] = MappingProxyType({"columns": -2, "rows": -1})
"""The dimension of a kernel that is the residual stream's."""


class Sharding(NamedTuple):
    """Over what the parameters are split besides the ranks.

    tp: devices that share a rank.
    zero: the stage of ZeRO over ``dp``, 0 to 3.
    sequence: sequence parallelism: outside its kernels a device has its share of the sequence.
    splits: of each group of kernels (contract.py); one left out counts as columns, and wants ``tp`` 1.
    """

    tp: int = 1
    zero: int = 0
    sequence: bool = False
    splits: frozenset[tuple[str, Split]] = frozenset()

    def split(self, group: str) -> Split:
        splits = dict(self.splits)
        assert self.tp == 1 or group in splits, f"tp={self.tp}, but the kernels {group!r} have no split"
        return splits.get(group, "columns")

    def shared(self, groups: Iterable[str]) -> dict[str, Shared | None]:
        """Of each group of kernels, how the devices of a rank share its products."""
        return {group: Shared(self.split(group), self.sequence) if self.tp > 1 else None for group in groups}

    @property
    def token_shards(self) -> int:
        """Into how many shares the tokens of a message are cut."""
        return self.tp if self.sequence else 1


UNSHARDED = Sharding()
"""A device has all that its rank has."""


def stage_specs(params: Tree, sharding: Sharding) -> Tree:
    """The partition of parameters in stage layout."""
    dp, tp = "dp" if sharding.zero else None, "tp" if sharding.tp > 1 else None

    def kernels(group: str) -> PartitionSpec:
        features = (dp, tp) if sharding.split(group) == "columns" else (tp, dp)
        return PartitionSpec("pp", None, None, *features)

    layers = params["layers"]
    specs = {
        "layers": {
            "kernels": {
                group: jax.tree.map(lambda _, group=group: kernels(group), kernel)
                for group, kernel in layers["kernels"].items()
            },
            "small": jax.tree.map(lambda _: PartitionSpec("pp"), layers["small"]),
        },
        "final": jax.tree.map(lambda _: PartitionSpec(), params["final"]),
    }
    rows = ("pp", "tp") if tp else "pp"
    return specs | {group: PartitionSpec(rows, dp) for group in VOCABULARY_GROUPS if group in params}


def stage_shardings(params: Tree, mesh: Mesh, sharding: Sharding) -> Tree:
    """``stage_specs`` on a mesh."""
    return to_shardings(stage_specs(params, sharding), mesh)


def to_shardings(specs: Tree, mesh: Mesh) -> Tree:
    """Each partition of a tree on a mesh."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )


def gather_weights(params: Tree, sharding: Sharding) -> Tree:
    """The shards of ``dp`` put together, inside ``shard_map``, of what such a tree holds of these groups."""
    return _over_hidden(
        params, sharding, lambda leaf, axis: jax.lax.all_gather(leaf, "dp", axis=axis, tiled=True)
    )


def scatter_gradients(gradients: Tree, sharding: Sharding) -> Tree:
    """Each device's shard of the sum over ``dp``; the inverse of ``gather_weights``."""
    return _over_hidden(
        gradients,
        sharding,
        lambda leaf, axis: jax.lax.psum_scatter(leaf, "dp", scatter_dimension=axis, tiled=True),
    )


def _over_hidden(tree: Tree, sharding: Sharding, change: Callable[[Array, int], Array]) -> Tree:
    """``change(leaf, axis of the residual stream)`` of the kernels and the vocabulary, the rest as it is."""

    def kernels(group: str, leaf: Array) -> Array:
        return change(leaf, leaf.ndim + HIDDEN_AXIS[sharding.split(group)])

    changed = dict(tree)
    if "kernels" in tree:
        changed["kernels"] = {
            group: jax.tree.map(lambda leaf, group=group: kernels(group, leaf), kernel)
            for group, kernel in tree["kernels"].items()
        }
    if "layers" in tree:
        changed["layers"] = _over_hidden(tree["layers"], sharding, change)
    for group in VOCABULARY_GROUPS:
        if group in tree:
            changed[group] = change(tree[group], 1)
    return changed
