"""Read all files of prepared tokens and their tokenizer, and say whether each is what was written.

Of each file the hash is compared with the manifest, and each id with the vocabulary. Ends with 1 if anything
is damaged.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from jaxpipe.cli.faults import RefusedError
from jaxpipe.data.prepared import read_manifest, tokenizer_of
from jaxpipe.data.verify import shard_faults
from jaxpipe.errors import InputError
from jaxpipe.units import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to verify."""
    parser.add_argument("directories", metavar="DIR", nargs="+", help="what jaxpipe data prepare has written")


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each folder and each fault; 1 if there is a fault."""
    is_damaged = False
    for directory in arguments.directories:
        faults = _faults(Path(directory))
        is_damaged |= bool(faults)
        for fault in faults:
            print(f"{directory}: damaged: {fault}", flush=True)
        if not faults:
            manifest = read_manifest(Path(directory))
            tokens = manifest.tokens("training") + manifest.tokens("validation")
            print(
                f"{directory}: whole, {counted(len(manifest.shards), 'shard')}, {counted(tokens, 'token')}",
                flush=True,
            )
    return 1 if is_damaged else 0


def _faults(folder: Path) -> list[str]:
    """Of the tokenizer and of all shards, with a bar on the terminal."""
    if not folder.is_dir():
        raise RefusedError(
            [f"there is no folder {str(folder)!r}; name one that jaxpipe data prepare has written"]
        )
    manifest = read_manifest(folder)
    found: list[str] = []
    try:
        tokenizer_of(folder, manifest)
    except InputError as error:
        found.append(str(error))
    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    columns = (TextColumn("{task.description}", markup=False), BarColumn())
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as progress:
        total = sum(shard.tokens for shard in manifest.shards)
        task = progress.add_task(f"verifying {folder}", total=total)
        for shard in manifest.shards:
            found += shard_faults(folder, manifest, shard)
            progress.advance(task, shard.tokens)
    return found
