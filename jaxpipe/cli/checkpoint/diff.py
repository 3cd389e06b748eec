"""Compare the arrays of two checkpoints: which differ, in how many elements, where, and by how much.

An element differs if its bits do. "Relative" is the largest difference over the largest value of that array;
"rows" are the indices along its first dimension, for layers the numbers of the layers. Mesh and schedule do
not show in a checkpoint, so those of different ones can be compared. Ends with 1 if anything differs.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from jaxpipe.checkpoint.manifest import StoredArray
from jaxpipe.cli.checkpoint.places import HELP, find_whole
from jaxpipe.cli.checkpoint.reading import each_leaf
from jaxpipe.cli.terminal import draw_table
from jaxpipe.pictures import Table

_MAX_ROWS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two."""
    parser.add_argument("one", metavar="ONE", help=HELP)
    parser.add_argument("other", metavar="OTHER", help="another one")


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each array that differs; 0 if none does."""
    (one, first), (other, second) = find_whole(arguments.one), find_whole(arguments.other)
    print(f"{one}: step {first.step}\n{other}: step {second.step}")
    odd = _shapes_that_differ(first.arrays, second.arrays)
    same = {name: array for name, array in first.arrays.items() if name not in odd}
    rows = _differences(one, other, same, second.arrays)
    for name, words in odd.items():
        print(f"{name}: {words}")
    if rows:
        header = ("array", "elements that differ", "of", "largest", "relative", "rows")
        print("\n".join(draw_table(Table(header, tuple(rows)))))
    equal = len(same) - len(rows)
    print(f"{equal} of {len(first.arrays.keys() | second.arrays.keys())} arrays are equal to the bit")
    return 1 if odd or rows else 0


def _shapes_that_differ(
    first: Mapping[str, StoredArray], second: Mapping[str, StoredArray]
) -> dict[str, str]:
    """The arrays that cannot be compared, and why."""
    odd = {}
    for name in [*first, *(name for name in second if name not in first)]:
        sides = [_describe(arrays.get(name)) for arrays in (first, second)]
        if sides[0] != sides[1]:
            odd[name] = f"{sides[0]} in the one, {sides[1]} in the other"
    return odd


def _describe(array: StoredArray | None) -> str:
    return "absent" if array is None else f"{array.dtype}{list(array.shape)}"


def _differences(
    one: Path, other: Path, first: Mapping[str, StoredArray], second: Mapping[str, StoredArray]
) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, stored in each_leaf("comparing", first):
        from jaxpipe.checkpoint.leaves import difference, read_leaf  # loads JAX

        found = difference(read_leaf(one, name, stored), read_leaf(other, name, second[name]))
        if found.num_different:
            rows.append(
                (
                    name,
                    str(found.num_different),
                    str(stored.size),
                    f"{found.largest:.3g}",
                    f"{found.relative:.3g}",
                    _some(found.rows),
                )
            )
    return rows


def _some(rows: tuple[int, ...]) -> str:
    """``0-3 7 9 ...``: stretches of numbers that follow each other."""
    stretches: list[list[int]] = []
    for row in rows:
        if stretches and stretches[-1][1] == row - 1:
            stretches[-1][1] = row
        else:
            stretches.append([row, row])
    words = [f"{low}" if low == high else f"{low}-{high}" for low, high in stretches]
    return " ".join(words[:_MAX_ROWS] + ["..."] * (len(words) > _MAX_ROWS))
