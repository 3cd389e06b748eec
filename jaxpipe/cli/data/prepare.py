"""Turn text into tokens that a run maps into memory: a folder to give as data.path.

A .txt, .py or .md file is one document, a .jsonl file has one a line, a .parquet file one a row, in the field
or column --field. Files of any size are read piece by piece, by as many processes as there are cores, and
memory does not grow with them. The same command goes on where an earlier one was interrupted, and the result
is the same to the byte, however many workers there are.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from jaxpipe.cli.faults import refuse_if_any
from jaxpipe.data.prepare import Progress as Done
from jaxpipe.data.prepare import Settings, prepare
from jaxpipe.data.prepare.units import OnProgress
from jaxpipe.data.prepared import Manifest
from jaxpipe.units import counted, format_bytes

_MIB = 2**20
_MOST_WORKERS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to read, how, and where to write."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="a file, folder or glob (.txt, .py, .md, .jsonl, .parquet)",
    )
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="the folder, new or begun")
    parser.add_argument(
        "--tokenizer", metavar="FILE", help="a .json of tokenizers or a .model of sentencepiece; else bytes"
    )
    parser.add_argument(
        "--end-of-document", metavar="TOKEN", help="which ends a document; else the tokenizer's own"
    )
    parser.add_argument("--field", default="text", help="of a line or row, which holds its text (text)")
    parser.add_argument(
        "--validation-fraction",
        metavar="SHARE",
        default="0.05",
        help="kept for validation (0.05)",
    )
    parser.add_argument("--workers", metavar="N", help="processes; else one for each core")
    parser.add_argument("--shard-size", metavar="MIB", default="64", help="text in a shard, about (64)")


def run(arguments: argparse.Namespace) -> None:
    """Prepare, and say what came out; ``RefusedError`` if a number is none."""
    faults: list[str] = []
    fraction = _number(arguments.validation_fraction, "--validation-fraction", 0, 1, faults)
    shard_size = _number(arguments.shard_size, "--shard-size", 1 / _MIB, 2**20, faults)
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if arguments.workers is not None:
        workers = int(_number(arguments.workers, "--workers", 1, _MOST_WORKERS, faults, is_whole=True))
    if fraction == 1:
        faults.append("--validation-fraction 1 leaves no text for training; give less")
    if not arguments.output:
        faults.append("-o must name a folder; give one")
    refuse_if_any(faults)
    began = time.perf_counter()
    with _shown() as on_progress:
        manifest = prepare(
            arguments.paths,
            Path(arguments.output),
            tokenizer=arguments.tokenizer,
            end_of_document=arguments.end_of_document,
            settings=Settings(arguments.field, fraction, round(shard_size * _MIB)),
            workers=workers,
            on_progress=on_progress,
        )
    print(_summary(arguments.output, manifest, time.perf_counter() - began))


def _number(
    text: str, name: str, low: float, high: float, faults: list[str], *, is_whole: bool = False
) -> float:
    """What the text says, or a fault and ``low``."""
    try:
        value = int(text) if is_whole else float(text)
    except ValueError:
        value = float("nan")
    if low <= value <= high:
        return value
    kind = "a whole number" if is_whole else "a number"
    faults.append(f"{name} {text!r} must be {kind} from {low:.2g} to {high}")
    return low


@contextmanager
def _shown() -> Iterator[OnProgress]:
    """A bar on the terminal, which vanishes at the end."""
    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    columns = (
        TextColumn("preparing"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[said]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as progress:
        task = progress.add_task("preparing", total=None, said="")
        began, first = time.monotonic(), -1

        def show(done: Done) -> None:
            nonlocal first
            first = done.done if first < 0 else first
            speed = (done.done - first) / max(time.monotonic() - began, 1e-9)
            said = (
                f"{format_bytes(done.done)} of {format_bytes(done.total)}, {format_bytes(speed)}/s, "
                f"{done.tokens:,} tokens"
            )
            progress.update(task, total=done.total, completed=done.done, said=said)

        yield show


def _summary(directory: str, manifest: Manifest, seconds: float) -> str:
    tokens = {side: manifest.tokens(side) for side in ("training", "validation")}
    documents = {side: manifest.documents(side) for side in tokens}
    left_out = counted(manifest.empty_documents, "empty document")
    empty = f"; {left_out} left out" if manifest.empty_documents else ""
    without_ends = sum(tokens.values()) - sum(documents.values())
    lines = [
        f"  {side:<11} {counted(tokens[side], 'token')} in {counted(documents[side], 'document')}"
        for side in tokens
    ]
    rest = (
        f"{manifest.text_bytes / max(without_ends, 1):.2f} bytes a token; "
        f"{counted(len(manifest.shards), 'shard')}; {seconds:.1f} seconds{empty}"
    )
    return "\n".join([f"{directory}: {rest}", *lines])
