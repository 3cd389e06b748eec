"""What a run shows on stdout: facts at its start, then how far it is.

On a terminal one line with a bar is redrawn in place; elsewhere (a file, a pipe) each logged step is a plain
line without control characters. A process that should be quiet passes ``enabled=False``: nothing is printed.

    train ━━━━━━╸━━━━━━ step 120/200  loss 2.0841  12,345 tokens/s  lr 3.0e-04  eta 0:01:20
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from jaxpipe.training.storage import storing

_STDOUT = "the standard output"


class _Console(Console):
    """Rich's, which would end the process by itself where nobody reads stdout any more."""

    def on_broken_pipe(self) -> None:
        """Called while the error is handled: it goes on, to ``storing``."""
        raise


@dataclass(frozen=True)
class ProgressLine:
    """Where ``show_step`` and ``show_message`` print; ``bar`` is None where there is no terminal."""

    console: Console
    num_steps: int
    bar: tuple[Progress, TaskID] | None


def make_console(*, enabled: bool = True) -> Console:
    """The console of this process, on stdout; one that prints nothing unless ``enabled``."""
    return _Console(quiet=not enabled, highlight=False, markup=False)


def show_facts(console: Console, title: str, facts: Sequence[tuple[str, str]]) -> None:
    """Print (label, value) pairs: a panel on a terminal, aligned plain lines elsewhere."""
    if not console.is_terminal:
        width = max((len(label) for label, _ in facts), default=0)
        for label, value in facts:
            _print(console, f"{label:<{width}}  {value}")
        return
    table = Table.grid(Column(no_wrap=True, style="cyan"), Column(overflow="fold"), padding=(0, 2))
    for label, value in facts:
        table.add_row(Text(label), Text(value))
    _print(console, Panel(table, title=Text(title), title_align="left", expand=False))


@contextmanager
def open_progress(console: Console, num_steps: int, *, start_step: int = 0) -> Iterator[ProgressLine]:
    """The progress of a run from ``start_step`` to ``num_steps``, as long as this context lasts."""
    if not console.is_terminal or console.quiet:  # a quiet bar would swallow what others print
        yield ProgressLine(console, num_steps, None)
        return
    columns = (
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, expand=True, auto_refresh=False) as progress:
        task = progress.add_task("starting", total=num_steps, completed=start_step)
        progress.refresh()
        yield ProgressLine(console, num_steps, (progress, task))


def show_step(
    line: ProgressLine,
    step: int,
    *,
    loss: float,
    learning_rate: float,
    tokens_per_second: float,
    step_seconds: float,
    mfu: float | None = None,
) -> None:
    """Show that ``step`` is done; the remaining ones are expected to take ``step_seconds`` each."""
    remaining = timedelta(seconds=round((line.num_steps - step) * step_seconds))
    text = (
        f"step {step}/{line.num_steps}  loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s  "
        f"{'' if mfu is None else f'mfu {mfu:.1%}  '}lr {learning_rate:.1e}  eta {remaining}"
    )
    if line.bar is None:
        _print(line.console, text)
        return
    progress, task = line.bar
    with storing(_STDOUT):
        progress.update(task, completed=step, description=text, refresh=True)


def show_message(line: ProgressLine, message: str) -> None:
    """Print a line that stays, above the bar if there is one: an evaluation, a checkpoint."""
    _print(line.console, message)


def _print(console: Console, what: str | Panel) -> None:
    """Print what stays; StorageError if stdout takes nothing any more."""
    with storing(_STDOUT):
        console.print(what, soft_wrap=isinstance(what, str))
