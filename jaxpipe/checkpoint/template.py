"""A template says which arrays a run expects; a checkpoint must hold exactly these.

Orbax casts dtypes, pads and truncates shapes without a word, depending on its options. Here names, shapes and
dtypes are compared with what the manifest says before any array is read; only the sharding is the reader's
own choice. The name of a leaf is its path in the tree: ``params.layers.attention.query``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from jaxpipe.checkpoint.manifest import StoredArray
from jaxpipe.errors import InputError

MAX_FAULTS = 10


class Leaf(Protocol):
    """What an array, a ``jax.ShapeDtypeStruct`` and a manifest's record of one have in common."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of ``tree`` by name, in the tree's order; ValueError if two have the same name."""
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in named:
            raise ValueError(f"each leaf needs a name of its own: two are {name!r}; use keys without dots")
        named[name] = leaf
    return named


def check_arrays(named: Mapping[str, Any]) -> None:
    """Raise ValueError unless every one is a jax.Array."""
    others = {name: type(leaf) for name, leaf in named.items() if not isinstance(leaf, jax.Array)}
    if others:
        found = ", ".join(f"{name} is {kind.__name__}" for name, kind in others.items())
        raise ValueError(f"a checkpoint holds jax arrays only: {found}; put other values into info")


def check_template(
    stored: Mapping[str, StoredArray], wanted: Mapping[str, jax.ShapeDtypeStruct], *, folder: Path
) -> None:
    """Raise InputError unless ``wanted`` has the names, shapes and dtypes of ``stored``.

    Args:
        stored: the arrays of the manifest.
        wanted: what the run asks for, each with a sharding.
        folder: the checkpoint, for the message.
    """
    unsharded = [name for name, leaf in wanted.items() if leaf.sharding is None]
    if unsharded:
        raise ValueError(
            f"each leaf to restore needs a sharding, which {', '.join(unsharded)} lacks; "
            "give it to jax.ShapeDtypeStruct(shape, dtype, sharding=...)"
        )
    faults = _differences(stored, wanted)
    if faults:
        shown = faults[:MAX_FAULTS] + [f"and {len(faults) - MAX_FAULTS} more"] * (len(faults) > MAX_FAULTS)
        raise InputError(
            f"checkpoint {folder} must hold exactly the arrays of this run:\n  "
            + "\n  ".join(shown)
            + "\nresume with the model and the optimizer that wrote it"
        )


def _differences(stored: Mapping[str, Leaf], wanted: Mapping[str, Leaf]) -> list[str]:
    """One line for each leaf that is not the same on both sides."""
    names = [*wanted, *(name for name in stored if name not in wanted)]
    sides = [(name, _describe(stored.get(name)), _describe(wanted.get(name))) for name in names]
    return [
        f"{name}: {found} in the checkpoint, {asked} in this run"
        for name, found, asked in sides
        if found != asked
    ]


def _describe(leaf: Leaf | None) -> str:
    """``float32[4, 128]``, or ``absent``."""
    return "absent" if leaf is None else f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
