"""A row of tokens that may be far larger than memory: parts behind each other, in memory or in files.

A file is mapped when its first token is asked for, and the system reads the pages that are used, so a row of
many gigabytes is there at once. What a manifest says of a file (its hash, its largest id) is believed here;
each token that is read is checked against the vocabulary all the same, in ``samples``.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxpipe.data.tokens import END_OF_DOCUMENT, Tokens
from jaxpipe.errors import InputError


class Place(NamedTuple):
    """A token: its id, the file (or the text) it stands in, and how many stand there before it."""

    id: int
    where: str
    offset: int


@dataclass(frozen=True, eq=False)
class Part:
    """``length`` tokens that ``source`` holds: an array, or a file of nothing but ids of ``dtype``."""

    source: Tokens | Path
    length: int
    dtype: np.dtype[np.unsignedinteger]
    name: str
    known_digest: str | None = None
    known_largest: Place | None = None

    @cached_property
    def tokens(self) -> Tokens:
        """All of them; of a file, mapped."""
        if not isinstance(self.source, Path):
            return self.source
        try:
            return np.memmap(self.source, self.dtype, "r", shape=(self.length,))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{self.source} cannot be read ({reason}); prepare the data once more"
            ) from error

    @cached_property
    def digest(self) -> str:
        """The hash of all ids, which for a file its manifest knows."""
        return self.known_digest or hashlib.sha256(self.tokens.tobytes()).hexdigest()

    def largest(self) -> Place:
        """The first of the largest ids, which for a file its manifest knows."""
        if self.known_largest is not None:
            return self.known_largest
        offset = int(np.argmax(self.tokens))
        return Place(int(self.tokens[offset]), self.name, offset)


@dataclass(frozen=True, eq=False)
class Row:
    """Parts of one kind of text, none of them empty.

    name: what the row is called where there are several.
    vocab_size: above every id that may be in it; None: any may.
    """

    parts: tuple[Part, ...]
    name: str = ""
    end_of_document: int = END_OF_DOCUMENT
    vocab_size: int | None = None

    def __len__(self) -> int:
        return int(self._ends[-1]) if self.parts else 0

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum([part.length for part in self.parts], dtype=np.int64)

    @cached_property
    def digest(self) -> str:
        """16 digits that change with any token."""
        if len(self.parts) == 1:
            return self.parts[0].digest[:16]
        return hashlib.sha256("".join(part.digest for part in self.parts).encode()).hexdigest()[:16]

    def read_into(self, target: NDArray[np.uint32], start: int) -> int:
        """Fill ``target`` with the tokens from ``start`` on, as far as there are any; how many."""
        stop = min(start + len(target), len(self))
        number, done = int(np.searchsorted(self._ends, start, "right")), 0
        while start + done < stop:
            part = self.parts[number]
            before = int(self._ends[number]) - part.length
            found = part.tokens[start + done - before : stop - before]
            target[done : done + len(found)] = found
            done, number = done + len(found), number + 1
        return done

    def place(self, position: int) -> Place:
        """Where the token at this position of the row stands."""
        number = int(np.searchsorted(self._ends, position, "right"))
        part = self.parts[number]
        offset = position - int(self._ends[number]) + part.length
        return Place(int(part.tokens[offset]), part.name, offset)


def as_row(tokens: "Tokens | Row", *, name: str = "the text") -> Row:
    """A row of one array in memory, with any ids."""
    return tokens if isinstance(tokens, Row) else Row(parts_of(tokens, name=name))


def parts_of(tokens: Tokens, *, name: str) -> tuple[Part, ...]:
    """The one part of an array in memory, or none if it is empty."""
    return (Part(tokens, len(tokens), tokens.dtype, name),) if len(tokens) else ()


def check_ids(rows: Iterable[Row], *, vocab_size: int) -> None:
    """``InputError`` names the first id that a model of ``vocab_size`` does not know; reads no file."""
    for place in (part.largest() for row in rows for part in row.parts):
        if place.id >= vocab_size:
            raise InputError(
                f"id {place.id} at token {place.offset:,} of {place.where} is outside the vocabulary of "
                f"model.vocab_size={vocab_size}; use at least {place.id + 1}"
            )


def digest_of(rows: Sequence[Row]) -> str:
    """16 digits that change with any token of any row; of one row, its own."""
    if len(rows) == 1:
        return rows[0].digest
    return hashlib.sha256(" ".join(row.digest for row in rows).encode()).hexdigest()[:16]
