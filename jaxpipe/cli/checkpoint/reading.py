"""The arrays of a checkpoint one after the other, with a bar on the terminal that says how far it is."""

import os
import sys
from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from jaxpipe.checkpoint.manifest import StoredArray


def each_leaf(title: str, arrays: Mapping[str, StoredArray]) -> Iterator[tuple[str, StoredArray]]:
    """Names and records in their order; the bar is on stderr, and vanishes.

    Whoever reads them loads JAX after the first one is given out: on the CPU, whatever else there is.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    columns = (TextColumn("{task.description}", markup=False), BarColumn())
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as progress:
        task = progress.add_task(title, total=sum(array.size for array in arrays.values()))
        for name, stored in arrays.items():
            yield name, stored
            progress.advance(task, stored.size)
