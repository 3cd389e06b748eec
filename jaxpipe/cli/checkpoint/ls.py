"""List the checkpoints of a run: when each was saved, its size, its validation loss, and what is wrong.

A checkpoint is complete if its manifest agrees with itself and all files have the sizes that it says. Whether
they also hold what was written, `verify` finds out: it reads them.
"""

import argparse
import json
import os
from pathlib import Path
from typing import NamedTuple

from jaxpipe.checkpoint.manifest import Manifest
from jaxpipe.checkpoint.step_folders import best_step, damaged_folders, entries, leftovers, step_folder
from jaxpipe.cli.checkpoint.places import HELP, find_steps
from jaxpipe.cli.faults import refuse_if_any
from jaxpipe.cli.output import add_output_arguments, find_output_faults, write
from jaxpipe.cli.terminal import draw_table
from jaxpipe.pictures import Table
from jaxpipe.units import format_bytes

FORMATS = ("text", "json")


class _Row(NamedTuple):
    """``size`` in bytes; ``fault`` is empty for a complete checkpoint."""

    step: int
    manifest: Manifest | None
    size: int
    is_best: bool
    fault: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and how to show it."""
    parser.add_argument("run_directory", metavar="RUN", help=HELP)
    add_output_arguments(parser, FORMATS)


def run(arguments: argparse.Namespace) -> None:
    """Print a line for each; ``RefusedError`` if there is no such run."""
    refuse_if_any(find_output_faults(arguments, FORMATS))
    directory, steps = find_steps(arguments.run_directory)
    rows = [row for row in _rows(directory) if row.step in steps]
    others = [path.name for path in leftovers(directory)] + damaged_folders(directory)
    text = _as_json(rows, others) if arguments.format == "json" else _as_text(directory, rows, others)
    write(text, arguments.output)


def _rows(directory: Path) -> list[_Row]:
    found = entries(directory)
    best = best_step(found)
    return [
        _Row(
            entry.step,
            entry.manifest,
            entry.manifest.num_bytes if entry.manifest else 0,
            entry.step == best,
            entry.fault or _size_fault(step_folder(directory, entry.step), entry.manifest),
        )
        for entry in found
        if os.path.lexists(step_folder(directory, entry.step))  # it may just have been deleted
    ]


def _size_fault(folder: Path, manifest: Manifest | None) -> str:
    """The first file that is missing or has another size."""
    assert manifest is not None
    for name, file in manifest.files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != file.size:
            return f"{name} has {path.stat().st_size} bytes of {file.size}"
    return ""


def _as_json(rows: list[_Row], others: list[str]) -> str:
    checkpoints = [
        {
            "step": row.step,
            "complete": not row.fault,
            "fault": row.fault or None,
            "saved_at": row.manifest.saved_at if row.manifest else None,
            "bytes": row.size,
            "arrays": len(row.manifest.arrays) if row.manifest else 0,
            "validation_loss": row.manifest.validation_loss if row.manifest else None,
            "best": row.is_best,
        }
        for row in rows
    ]
    return json.dumps({"checkpoints": checkpoints, "others": others}, indent=2) + "\n"


def _as_text(directory: Path, rows: list[_Row], others: list[str]) -> str:
    lines = []
    if rows:
        header = ("step", "saved (UTC)", "size", "validation loss")
        drawn = draw_table(Table(header, tuple(map(_cells, rows))))
        notes = ["", *map(_note, rows)]
        lines += [f"{line}  {note}".rstrip() for line, note in zip(drawn, notes, strict=True)]
    else:
        lines.append(f"{directory} holds no checkpoint yet")
    if others:
        lines.append(f"no checkpoints: {', '.join(others)}")
    return "\n".join(lines) + "\n"


def _cells(row: _Row) -> tuple[str, ...]:
    if row.manifest is None:
        return (str(row.step), "", "", "")
    loss = row.manifest.validation_loss
    return (
        str(row.step),
        row.manifest.saved_at.removesuffix("+00:00").replace("T", " "),
        format_bytes(row.size),
        "" if loss is None else f"{loss:.4f}",
    )


def _note(row: _Row) -> str:
    return f"damaged: {row.fault}" if row.fault else "best" * row.is_best
