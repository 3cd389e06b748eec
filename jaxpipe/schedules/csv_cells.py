"""The cells of a text with commas, and a message that shows them with the bad ones marked.

A spreadsheet's byte order mark, quotes, blanks, line ends of any kind and empty rows or cells mean nothing.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxpipe.schedules.generators.catalog import LARGEST

MOST_CELLS = 5 * LARGEST
"""F, R, B and W of the largest schedule, and some idle time."""
MOST_FAULTS, MOST_RANKS, WIDTH, LONGEST_SHOWN = 30, 40, 110, 24
"""What a message shows; more is counted."""
LONGEST_CELL = 100
"""No action of a schedule that is small enough has a longer name."""


class Cell(NamedTuple):
    """A text that is not empty, and where it stands: row and column from 1, as in the file."""

    row: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"row {self.row}, column {self.column}: {printable(self.text)}"


@dataclass(frozen=True)
class Table:
    """The rows that have a cell, and the lines that begin with ``#``, without it."""

    rows: tuple[tuple[Cell, ...], ...]
    remarks: tuple[str, ...]


class Fault(NamedTuple):
    """What is wrong, and with which cells."""

    text: str
    cells: tuple[Cell, ...] = ()

    def __str__(self) -> str:
        shown = "; ".join(map(str, self.cells[:4])) + ("; ..." if len(self.cells) > 4 else "")
        return f"{self.text} ({shown})" if shown else self.text


def read_table(text: str) -> Table:
    """``ValueError`` if there is no cell, or more than any schedule needs."""
    num_cells = text.count(",") + text.count("\n") + text.count("\r") + 1
    if num_cells > MOST_CELLS:
        raise ValueError(f"the text has {num_cells} cells, but may have {MOST_CELLS}; use smaller sizes")
    remarks, rows = [], []
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for row, line in enumerate(lines, start=1):
        if line.lstrip(' \t"').startswith("#"):
            remarks.append(line.strip(' \t",').removeprefix("#").strip())
            continue
        cells = (cell.strip().strip('"').strip() for cell in line.split(","))
        found = tuple(Cell(row, column, cell) for column, cell in enumerate(cells, start=1) if cell)
        if found:
            rows.append(found)
    if not rows:
        raise ValueError("the text has no action; write a row for each rank, such as 0F0,0BW0")
    return Table(tuple(rows), tuple(remarks))


def explain(title: str, faults: Sequence[Fault], table: Table, *, notes: Sequence[str] = ()) -> str:
    """All faults, then the notes, then the grid with the faults' cells in brackets."""
    more = [f"- and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else []
    lines = [*(f"- {fault}" for fault in faults[:MOST_FAULTS]), *more, *(f"({note})" for note in notes)]
    marked = {cell for fault in faults for cell in fault.cells}
    return "\n".join([title, *lines, *_grid(table.rows, marked=marked)])


def _grid(rows: Sequence[Sequence[Cell]], *, marked: Collection[Cell]) -> Iterator[str]:
    """The cells of each rank, cut to a window that begins shortly before the first marked ones."""
    top = _first((rank for rank, row in enumerate(rows) if any(cell in marked for cell in row)), before=2)
    top = max(min(top, len(rows) - MOST_RANKS), 0)
    shown = rows[top : top + MOST_RANKS]
    width = 2 + max(len(printable(cell.text)) for row in shown for cell in row)
    heads = [f"rank {rank:{len(str(len(rows) - 1))}} |" for rank in range(top, top + len(shown))]
    count = max((WIDTH - len(heads[0])) // width, 1)
    longest = max(map(len, shown))
    spots = (index for row in shown for index, cell in enumerate(row) if cell in marked)
    left = max(min(_first(spots, before=count // 4), longest - count), 0)
    for head, row in zip(heads, shown, strict=True):
        window = ((cell, printable(cell.text)) for cell in row[left : left + count])
        texts = (f"[{text}]" if cell in marked else f" {text}" for cell, text in window)
        yield (head + "".join(text.ljust(width) for text in texts)).rstrip()
    if len(shown) < len(rows) or longest > count:
        ranks = f"ranks {top} to {top + len(shown) - 1} of 0 to {len(rows) - 1}"
        yield f"(cut: {ranks}, actions {left} to {min(left + count, longest) - 1} of 0 to {longest - 1})"


def _first(spots: Iterator[int], *, before: int) -> int:
    return min(spots, default=0) - before


def printable(text: str) -> str:
    """On one line, and short."""
    short = text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."
    return "".join(letter if letter.isprintable() else "?" for letter in short)


def listed(values: Sequence[object]) -> str:
    """The first five, and how many more there are."""
    shown = ", ".join(map(str, values[:5]))
    return f"{shown} and {len(values) - 5} more" if len(values) > 5 else shown
