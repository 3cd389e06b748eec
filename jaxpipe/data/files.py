"""Which files a path, folder or glob means, each with a name that is the same on every machine.

A file's name is its path below the folder that was asked for (for a glob: below its part without
wildcards), so that neither the machine nor the other paths of a list change it. The order of the
files and the split into training and validation depend on names alone.
"""

import glob
import os
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.errors import InputError

SUFFIXES = (".txt", ".py", ".md", ".jsonl", ".parquet")
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "pydoc_data"}
_MADE_BY_THE_MACHINE = ("_sysconfigdata", "sitecustomize", "usercustomize")


@dataclass(frozen=True, order=True)
class TextFile:
    """A file and its stable name; files sort by name."""

    name: str
    path: Path


def find_files(path: str | Sequence[str] | None) -> tuple[TextFile, ...]:
    """The files that ``path`` means, in the order of their names, each once; None: the standard library.

    ``InputError`` names every part of ``path`` that matches nothing, every file of an unsupported kind
    and every file that cannot be read.
    """
    if path is None:
        return standard_library()
    patterns = (path,) if isinstance(path, str) else tuple(path)
    if not patterns:
        raise InputError(
            "the list of paths is empty; name a file, or give null for Python's standard library"
        )
    faults, found = [], []
    for pattern in patterns:
        try:
            files = _match(pattern)
        except (
            OSError,
            RuntimeError,
            ValueError,
        ) as error:  # of a long name, an unknown ~user, a null character
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            faults.append(f"{pattern!r} cannot be looked up: {reason.rstrip('.').lower()}; correct the path")
            continue
        if not files:
            faults.append(
                f"{pattern!r} matches no file; give a file, folder or glob of {', '.join(SUFFIXES)}"
            )
        found.append(files)
    unique = {file.path.resolve(): file for files in reversed(found) for file in files}
    faults += _unusable(unique.values())
    if faults:
        raise InputError("; ".join(faults))
    if all(file.path.stat().st_size == 0 for file in unique.values()):
        which = f"all {len(unique)} files are" if len(unique) > 1 else "the only file is"
        raise InputError(f"{which} empty; give text in data.path")
    return tuple(sorted(unique.values()))


def standard_library() -> tuple[TextFile, ...]:
    """The sources of the running Python's standard library, the same on every machine that has it.

    Left out are tests, installed packages, what the machine's build wrote, and ``pydoc_data``: one
    generated manual of 0.7 MB that would outweigh all other validation files.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT]  # they are not walked either
        files += [
            Path(folder, name)
            for name in names
            if name.endswith(".py") and not name.startswith(_MADE_BY_THE_MACHINE)
        ]
    if not files:
        raise InputError(f"this Python has no standard library source in {root}; set data.path")
    return tuple(sorted(TextFile(file.relative_to(root).as_posix(), file) for file in files))


def _match(pattern: str) -> list[TextFile]:
    path = Path(pattern).expanduser()
    if path.is_dir():
        matches = [file for file in path.rglob("*") if file.suffix in SUFFIXES and not _is_hidden(file, path)]
        return [TextFile(file.relative_to(path).as_posix(), file) for file in matches if file.is_file()]
    if path.exists():
        return [TextFile(path.name, path)]
    root = Path(*_fixed_parts(path))
    matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
    return [TextFile(file.relative_to(root).as_posix(), file) for file in matches if file.is_file()]


def _is_hidden(file: Path, folder: Path) -> bool:
    """Whether it or a folder above it, below ``folder``, begins with a dot, as .git does; so with globs."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _fixed_parts(pattern: Path) -> list[str]:
    """The folders of a glob before its first wildcard."""
    parts = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        parts.append(part)
    return parts


def _unusable(files: Iterable[TextFile]) -> list[str]:
    faults = []
    for file in files:
        if file.path.suffix not in SUFFIXES:
            faults.append(f"{file.path} is none of {', '.join(SUFFIXES)}; rename it, or narrow the glob")
        elif not os.access(file.path, os.R_OK):
            faults.append(f"{file.path} cannot be read; check its permissions")
    return faults
