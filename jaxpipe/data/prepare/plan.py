"""The text cut into units of about equal size, of which each becomes a shard: from files and settings alone.

A unit is many small files, or a stretch of a large one: of a .jsonl the lines that begin in a range of bytes,
of a .parquet some row groups, of a text the pieces between two cuts (cuts.py). To plan takes the sizes of the
files and what a .parquet says of itself, so it takes no longer for large files. Workers do not show in it.

A corpus of a single text is cut in two documents, of which the second, its tail, is the validation text.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jaxpipe.data.corpus import tail
from jaxpipe.data.cuts import PIECE, character_start
from jaxpipe.data.documents import row_group_sizes
from jaxpipe.data.files import TextFile
from jaxpipe.data.prepared import FORMAT
from jaxpipe.data.tokenizer import Tokenizer
from jaxpipe.errors import InputError


@dataclass(frozen=True)
class Source:
    """A file of text as it was when the plan was made; it must not change until the end."""

    name: str
    path: str
    size: int
    modified: int


@dataclass(frozen=True)
class Settings:
    """What decides the tokens, besides the text.

    unit_bytes: text in a shard, about.
    """

    field: str = "text"
    validation_fraction: float = 0.05
    unit_bytes: int = 64 * 2**20


class Stretch(NamedTuple):
    """A part of source number ``source``: bytes of a file of text or lines, or row groups.

    begin, end: of a text, the bytes that are the document: all, unless a tail was cut off.
    size: bytes of text, about.
    """

    source: int
    start: int
    stop: int
    begin: int
    end: int
    size: int


@dataclass(frozen=True)
class Plan:
    """All that decides the result; ``units`` follow from the rest."""

    sources: tuple[Source, ...]
    settings: Settings
    tokenizer: str
    end_of_document: int
    units: tuple[tuple[Stretch, ...], ...]

    def to_json(self) -> str:
        """As text: two plans are the same if their texts are."""
        values = dataclasses.asdict(dataclasses.replace(self, units=()))
        return json.dumps({"format": FORMAT, **values}, indent=1) + "\n"


def make_plan(files: Sequence[TextFile], settings: Settings, tokenizer: Tokenizer) -> Plan:
    """``InputError`` if a .parquet is none, or a single text is too short to cut."""
    sources = tuple(_source(file) for file in files)
    cut = _cut_of_single(sources, settings.validation_fraction, is_bytes=tokenizer.is_bytes)
    stretches = [
        stretch
        for number, source in enumerate(sources)
        for stretch in _stretches(number, source, settings, cut)
    ]
    units: list[list[Stretch]] = []
    filled = settings.unit_bytes
    for stretch in stretches:
        if filled + stretch.size > settings.unit_bytes:
            units.append([])
            filled = 0
        units[-1].append(stretch)
        filled += stretch.size
    return Plan(
        sources, settings, tokenizer.digest, tokenizer.end_of_document, tuple(tuple(unit) for unit in units)
    )


def kind_of(source: Source) -> str:
    """``.jsonl``, ``.parquet``, or nothing for a file that is one document."""
    suffix = Path(source.path).suffix
    return suffix if suffix in (".jsonl", ".parquet") else ""


def _source(file: TextFile) -> Source:
    stat = file.path.stat()
    return Source(file.name, str(file.path.resolve()), stat.st_size, stat.st_mtime_ns)


def _stretches(number: int, source: Source, settings: Settings, cut: int | None) -> Iterator[Stretch]:
    unit = settings.unit_bytes
    if kind_of(source) == ".parquet":
        yield from _row_groups(number, source, settings)
    elif kind_of(source) == ".jsonl":
        for start in range(0, source.size, unit):
            stop = min(start + unit, source.size)
            yield Stretch(number, start, stop, 0, source.size, stop - start)
    else:
        step = -(-unit // PIECE) * PIECE
        for begin, end in ((0, source.size),) if cut is None else ((0, cut), (cut, source.size)):
            for start in range(0, end - begin, step):
                stop = min(start + step, end - begin)
                yield Stretch(number, start, stop, begin, end, stop - start)


def _row_groups(number: int, source: Source, settings: Settings) -> Iterator[Stretch]:
    sizes = row_group_sizes(Path(source.path), field=settings.field)
    first, size = 0, 0
    for behind, in_group in enumerate(sizes, start=1):
        size += in_group
        if size >= settings.unit_bytes or behind == len(sizes):
            yield Stretch(number, first, behind, 0, len(sizes), size)
            first, size = behind, 0


def _cut_of_single(sources: Sequence[Source], fraction: float, *, is_bytes: bool) -> int | None:
    """Where the validation text begins, if all there is is one text."""
    having = [source for source in sources if source.size]
    if fraction == 0 or len(having) != 1 or kind_of(having[0]):
        return None
    (single,) = having
    if single.size < 2:
        raise InputError(
            f"{single.path} holds a single byte, too little to split; give more text, or "
            "--validation-fraction 0"
        )
    cut = single.size - tail(single.size, fraction)
    if is_bytes:
        return cut
    with open(single.path, "rb") as file:
        start = max(cut - 4, 0)
        file.seek(start)
        return start + character_start(file.read(5), cut - start)
