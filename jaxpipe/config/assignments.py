"""What a source says: this key gets that value, and here is where it was written.

A YAML file and the command line are read into the same assignments; only then are they given types,
so that both obey the same rules. Faults are collected, never raised one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jaxpipe.config.keys import keys, sections, suggest


@dataclass(frozen=True)
class Text:
    """A scalar as it was written; what is ``quoted`` is text and never a number."""

    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Items:
    """A list of values."""

    items: "tuple[Value, ...]"


@dataclass(frozen=True)
class Entries:
    """A mapping where a key wants a value."""


Value: TypeAlias = Text | Items | Entries | None


@dataclass(frozen=True)
class Assignment:
    """``path`` gets ``value``; ``where`` is ``file:line`` or ``command line``."""

    path: str
    value: Value
    where: str


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, as a sentence, and where it was written if that is known."""

    message: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


@dataclass(frozen=True)
class Source:
    """All that one source says, and all that is wrong with it; ``complete`` unless it broke off."""

    assignments: tuple[Assignment, ...] = ()
    faults: tuple[Fault, ...] = ()
    complete: bool = True


def check_path(assignment: Assignment) -> Fault | None:
    """The fault of an assignment to something that is no key."""
    path = assignment.path
    section = sections().get(path)
    if path in keys() or (section is not None and section.optional and assignment.value is None):
        return None
    if section is not None:
        example = next(key for key in keys() if key.startswith(path + "."))
        return Fault(
            f"{path} is a section and takes no value; set its keys, such as {example}", assignment.where
        )
    return Fault(f"{path} is not a key of the configuration{suggest(path)}", assignment.where)


def overlay(sources: Sequence[Source]) -> Source:
    """All sources as one: a later one wins, key by key, and null for a section takes its keys away."""
    merged: dict[str, Assignment] = {}
    for source in sources:
        for assignment in source.assignments:
            merged = {path: kept for path, kept in merged.items() if not related(path, assignment.path)}
            merged[assignment.path] = assignment
    faults = tuple(fault for source in sources for fault in source.faults)
    return Source(tuple(merged.values()), faults, all(source.complete for source in sources))


def related(path: str, other: str) -> bool:
    """Whether the two are one key, or one is a section that holds the other."""
    return path == other or path.startswith(other + ".") or other.startswith(path + ".")
