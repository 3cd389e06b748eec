"""Writes docs/configuration.md, all keys, from the code (``make docs``); a test tells if it is stale."""

import ast
import dataclasses
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any

from jaxpipe.config.keys import Key, Section, keys, sections
from jaxpipe.config.ranges import RANGES
from jaxpipe.config.values import describe, options

FOLDER = Path(__file__).parent

INTRODUCTION = """\
# Configuration

Every key of a run, from the code. A run is a YAML file, and flags that overrule it:
`python train.py configs/tiny.yaml --train.num_steps 20`. In the file keys are nested, `train:` with
`num_steps:` below it. `train.py --help` prints the same with the values of a file.

A key without a default must be given. *null* is written `null` in YAML and as a flag; a list is `[1, 2]` in
YAML and `--key 1 2` as a flag. What is wrong, in a file or a flag, is told all at once, before JAX starts."""


def main(folder: Path) -> None:
    """Write the page."""
    (folder / "configuration.md").write_text(_page(), encoding="utf-8")


def _page() -> str:
    parts = [INTRODUCTION]
    for section in sections().values():
        own = [key for path, key in keys().items() if path.rpartition(".")[0] == section.path]
        parts.append("\n".join(_section(section, own)))
    return "\n\n".join(parts) + "\n"


def _section(section: Section, own: list[Key]) -> Iterator[str]:
    yield f"## {section.path}"
    yield ""
    yield inspect.cleandoc(section.kind.__doc__ or "")
    yield ""
    yield "| key | value | default | meaning |"
    yield "| --- | --- | --- | --- |"
    docs = _docs(section.kind)
    for key in own:
        name = key.path.rpartition(".")[2]
        yield f"| `{name}` | {_value(key)} | {_default(key.default)} | {docs[name]} |"


def _docs(kind: type) -> dict[str, str]:
    """The docstring of each field, on one line."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split()).replace("<", "&lt;")
        for field, text in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _value(key: Key) -> str:
    """What may be given, with its range."""
    words = describe(key.hint)
    limits = RANGES.get(key.path)
    if limits is not None:
        number = "a whole number" if int in options(key.hint) else "a number"
        words = words.replace(number, f"{number} {limits}")
    return words.replace(" or null", ", or null") if NoneType in options(key.hint) else words


def _default(default: Any) -> str:
    if default is dataclasses.MISSING:
        return "must be given"
    if default is None:
        return "null"
    return str(default).lower() if isinstance(default, bool) else str(default)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else FOLDER)
