"""The configuration seen flat: ``train.num_steps`` and the like, each with its type and default.

Files, flags, checks and messages all speak of a key by this path, so that sources merge by path and
a fault can be named wherever it comes from.
"""

import dataclasses
import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

from jaxpipe.config.sections import Config


@dataclass(frozen=True)
class Key:
    """One key; ``default`` is ``dataclasses.MISSING`` where a value must be given."""

    path: str
    hint: Any
    default: Any


@dataclass(frozen=True)
class Section:
    """A dataclass within the configuration; one that is ``optional`` may be null."""

    path: str
    kind: type
    optional: bool


@cache
def keys() -> dict[str, Key]:
    """Every key by its path, in the order in which the dataclasses name them."""
    return {item.path: item for item in _walk(Config, "") if isinstance(item, Key)}


@cache
def sections() -> dict[str, Section]:
    """Every section by its path, nested ones too."""
    return {item.path: item for item in _walk(Config, "") if isinstance(item, Section)}


def flatten(config: Config) -> dict[str, Any]:
    """The value of each key; an optional section that is null has none."""
    return dict(_values(config, ""))


def assemble(values: Mapping[str, Any]) -> Config:
    """The configuration with these values: ``assemble(flatten(config)) == config``."""
    config = _assemble(Config, "", values)
    assert isinstance(config, Config)
    return config


def suggest(path: str, *, flags: Collection[str] = ()) -> str:
    """``; did you mean ...?`` for a path that is no key, or nothing where no key has a name like its own.

    Of two names about as near, the one in the same section is meant. With ``flags``, those that are no keys,
    the path is that of a flag, and so is what was meant.
    """
    parent, _, name = path.replace("-", "_").rpartition(".")

    def likeness(candidate: str) -> float:
        other_parent, _, other = candidate.replace("-", "_").rpartition(".")
        return difflib.SequenceMatcher(None, name, other).ratio() + 0.1 * (parent == other_parent)

    best = max((*keys(), *sections(), *flags), key=likeness)
    return f"; did you mean {'--' if flags else ''}{best}?" if likeness(best) >= 0.65 else ""


def _walk(kind: type, prefix: str) -> Iterator[Key | Section]:
    hints = get_type_hints(kind)
    for item in dataclasses.fields(kind):
        path, hint = prefix + item.name, hints[item.name]
        nested = next((part for part in (hint, *get_args(hint)) if dataclasses.is_dataclass(part)), None)
        if isinstance(nested, type):
            yield Section(path, nested, NoneType in get_args(hint))
            yield from _walk(nested, path + ".")
        else:
            yield Key(path, hint, item.default)


def _values(section: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for item in dataclasses.fields(section):
        path, value = prefix + item.name, getattr(section, item.name)
        if dataclasses.is_dataclass(value):
            yield from _values(value, path + ".")
        elif path in keys():
            yield path, value


def _assemble(kind: type, prefix: str, values: Mapping[str, Any]) -> Any:
    arguments = {}
    for item in dataclasses.fields(kind):
        path = prefix + item.name
        section = sections().get(path)
        if section is None:
            arguments[item.name] = values[path]
        elif section.optional and not any(key.startswith(path + ".") for key in values):
            arguments[item.name] = None
        else:
            arguments[item.name] = _assemble(section.kind, path + ".", values)
    return kind(**arguments)
