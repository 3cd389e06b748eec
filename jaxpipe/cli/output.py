"""Where an answer goes: to the terminal, or whole into a file."""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jaxpipe.cli.faults import RefusedError


def add_output_arguments(parser: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    """``--format``, if there is a choice, whose default is the first; and ``-o``."""
    if formats:
        others = ", ".join(formats[1:])
        parser.add_argument("--format", default=formats[0], help=f"{formats[0]} (default), {others}")
    parser.add_argument("-o", "--output", metavar="FILE", help="write there instead of to the terminal")


def find_output_faults(arguments: argparse.Namespace, formats: Sequence[str]) -> list[str]:
    """A format that there is not, and a file that cannot be."""
    faults = []
    if formats and arguments.format not in formats:
        faults.append(f"--format {arguments.format!r} must be one of {', '.join(formats)}")
    if arguments.output is not None:
        faults += find_file_faults(arguments.output)
    return faults


def find_file_faults(output: str, option: str = "-o") -> list[str]:
    """Why nothing can be written there, to be told before the work; ``option`` is what named the file."""
    if not output or "\0" in output:
        return [f"{option} {output!r} must be the name of a file; name one"]
    path = Path(output)
    try:
        if path.is_dir():
            return [f"{option} {output!r} is a folder; name a file in it"]
        if not path.parent.is_dir():
            return [f"{option} {output!r} must lie in a folder that exists; make {str(path.parent)!r} first"]
        _try_folder(path)
    except OSError as error:
        return [*refused(output, error, option=option).faults]
    return []


def write(text: str, output: str | None, *, option: str = "-o") -> None:
    """``RefusedError`` if the system refuses."""
    if output is None:
        sys.stdout.write(text)
        return
    try:
        _write_file(Path(output), text)
    except OSError as error:
        raise refused(output, error, option=option) from error


def write_or_show(text: str, output: str | None) -> None:
    """The same for what took long to find: if the system refuses, it goes to the terminal first."""
    try:
        write(text, output)
    except RefusedError:
        sys.stdout.write(text)
        raise


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write what becomes the file when all is written; until then it is the old one."""
    beside = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def refused(output: str, error: OSError, *, option: str = "-o") -> RefusedError:
    """What to raise where the system refuses to write it."""
    return RefusedError(
        [f"{option} {output!r} cannot be written: {error.strerror or str(error)}; name another file"]
    )


def _try_folder(path: Path) -> None:
    """``OSError`` if no file can be made where that one will be: permissions alone do not say so, to root."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        return  # a pipe or device is written to itself
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def _write_file(path: Path, text: str) -> None:
    """A file is the old one or the new one, never half of it; a pipe or device is written to."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    with whole_file(path) as beside:
        beside.write_text(text, encoding="utf-8")
