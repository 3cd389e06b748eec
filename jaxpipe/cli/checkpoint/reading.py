"""The arrays of a checkpoint one after the other, with a bar on the terminal that says how far it is."""

import os
from collections.abc import Iterator, Mapping

from jaxpipe.checkpoint.manifest import StoredArray
from jaxpipe.cli.progress_bar import progress_bar


def each_leaf(title: str, arrays: Mapping[str, StoredArray]) -> Iterator[tuple[str, StoredArray]]:
    """Names and records in their order; the bar is on stderr, and vanishes.

    Whoever reads them loads JAX after the first one is given out: on the CPU, whatever else there is.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    with progress_bar(title, sum(array.size for array in arrays.values())) as advance:
        for name, stored in arrays.items():
            yield name, stored
            advance(stored.size)
