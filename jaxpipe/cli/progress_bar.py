"""How far long work is, as a bar on stderr that vanishes; where no terminal is, nothing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Call what is given with how much more of ``total`` is done."""
    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    columns = (TextColumn("{task.description}", markup=False), BarColumn())
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as progress:
        task = progress.add_task(title, total=total)
        yield lambda more: progress.advance(task, more)
