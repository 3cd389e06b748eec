"""Read whole checkpoints, and say whether every file and every array is what was saved.

First the hash of each file is compared with the manifest, then each array is read back, one after the other,
and its fingerprint compared. Ends with 1 if anything is damaged.
"""

import argparse
from pathlib import Path

from jaxpipe.checkpoint.manifest import find_damage
from jaxpipe.checkpoint.step_folders import read_complete, step_folder
from jaxpipe.cli.checkpoint.places import HELP, find_steps
from jaxpipe.cli.checkpoint.reading import each_leaf
from jaxpipe.errors import CheckpointError, DamagedError, InputError
from jaxpipe.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to verify."""
    parser.add_argument("checkpoints", metavar="CHECKPOINT", nargs="+", help=HELP)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each checkpoint; 1 if one is damaged."""
    found = [
        (directory, step) for directory, steps in map(find_steps, arguments.checkpoints) for step in steps
    ]
    damaged = 0
    for directory, step in found:
        try:
            damage, summary = _verify(directory, step)
        except (CheckpointError, InputError) as error:  # of this one; the others are looked at all the same
            damage, summary = str(error), ""
        if damage is not None and not step_folder(directory, step).exists():
            damage, summary = None, "deleted while it was read"
        damaged += damage is not None
        print(
            f"{step_folder(directory, step)}: {summary if damage is None else f'damaged: {damage}'}",
            flush=True,
        )
    if not found:
        print("no checkpoints")
    return 1 if damaged else 0


def _verify(directory: Path, step: int) -> tuple[str | None, str]:
    """What is wrong, or None; and what there is."""
    folder = step_folder(directory, step)
    try:
        manifest = read_complete(directory, step)
    except DamagedError as error:
        return str(error), ""
    if damage := find_damage(folder, manifest.files):
        return damage, ""
    from jaxpipe.checkpoint.leaves import examine_leaf  # loads JAX

    for name, stored in each_leaf(f"verifying {step}", manifest.arrays):
        examined = examine_leaf(folder, name, stored)
        if examined.fingerprint != stored.fingerprint:
            return f"the values of {name} are not those that were saved", ""
    size = format_bytes(manifest.num_bytes)
    return None, f"whole, {len(manifest.files)} files, {len(manifest.arrays)} arrays, {size}"
