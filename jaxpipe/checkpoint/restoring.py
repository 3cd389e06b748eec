"""Arrays of a checkpoint, all or some, onto the devices that want them, and proved to be what was saved."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxpipe.checkpoint import array_files, manifest
from jaxpipe.checkpoint.fingerprint import examine
from jaxpipe.checkpoint.manifest import StoredArray
from jaxpipe.checkpoint.template import check_template, named_leaves
from jaxpipe.errors import CheckpointError, DamagedError, first_line

_MAX_NAMED = 5


def restore_arrays(folder: Path, stored: Mapping[str, StoredArray], like: Any) -> Any:
    """The arrays of the checkpoint in ``folder``, with the tree, shapes, dtypes and shardings of ``like``.

    Args:
        folder: that of a complete checkpoint.
        stored: of its manifest, the arrays that are wanted: exactly those of ``like``.
        like: a pytree of ``jax.ShapeDtypeStruct`` with shardings.

    Raises:
        InputError: ``stored`` differs from the leaves of ``like`` in name, shape or dtype.
        DamagedError: the values are not those that were saved.
        CheckpointError: it cannot be read.
        ValueError: a leaf of ``like`` has no sharding.
    """
    wanted = named_leaves(like)
    check_template(stored, wanted, folder=folder)
    try:
        arrays = array_files.read(folder / array_files.FOLDER, wanted)
    except Exception as error:
        raise CheckpointError(f"checkpoint {folder} could not be read: {first_line(error)}") from error
    found = {name: examined.fingerprint for name, examined in examine(arrays).items()}
    if changed := list(manifest.changed_arrays(stored, found)):
        raise DamagedError(f"the values of {some_of(changed)} are not those that were saved")
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])


def some_of(names: list[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
