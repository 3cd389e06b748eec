"""The text of a unit in pieces, each with its side: training or validation.

Which side a document is on depends on its name and where it begins, so units know nothing of each other. Only
where that would leave a side without any document is one of them forced to the other side afterwards.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from jaxpipe.data.corpus import name_share, tail
from jaxpipe.data.cuts import PIECE, Piece, character_start, num_pieces, pieces
from jaxpipe.data.documents import jsonl_documents, parquet_documents
from jaxpipe.data.prepare.plan import Plan, Source, Stretch, kind_of
from jaxpipe.data.prepared import SIDES
from jaxpipe.data.tokenizer import BYTES

TRAINING, VALIDATION = SIDES


class Forced(NamedTuple):
    """A document that is on ``side`` whatever its name says; side ``tail``: it is cut in two."""

    source: int
    ordinal: int
    side: str


class Extreme(NamedTuple):
    """A document that would be the first to change sides."""

    share: float
    source: int
    ordinal: int


Report = Callable[[float, int], None]
"""Told bytes of the files that are done, and tokens that are written."""


@dataclass
class Split:
    """Which document goes where, and what was seen on the way."""

    plan: Plan
    forced: Forced | None
    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))
    lowest: Extreme | None = None
    highest: Extreme | None = None
    empty: int = 0
    text_bytes: int = 0

    def pieces_of(self, unit: tuple[Stretch, ...], report: Report) -> Iterator[Piece]:
        """The text of a unit, in order, each piece with its side."""
        for stretch in unit:
            source = self.plan.sources[stretch.source]
            if kind_of(source):
                yield from self._of_many(stretch, source, report)
            else:
                yield from self._of_text(stretch, source, report)

    def _of_text(self, stretch: Stretch, source: Source, report: Report) -> Iterator[Piece]:
        """Some pieces of a document; it counts where it ends."""
        length = stretch.end - stretch.begin
        is_cut = length != source.size
        cut_side = VALIDATION if stretch.begin else TRAINING
        is_end = stretch.stop == length
        side = cut_side if is_cut else self._side(stretch.source, 0, source.name, counts=is_end)
        if is_cut:
            self.documents[side] += is_end
        count = num_pieces(stretch.stop)
        with open(source.path, "rb", buffering=0) as file:

            def read(start: int, stop: int) -> bytes:
                file.seek(stretch.begin + start)
                return file.read(min(stop, length) - start)

            texts = pieces(read, stretch.start // PIECE, count, length=length)
            for number, text in enumerate(texts, start=stretch.start // PIECE + 1):
                self.text_bytes += len(text)
                yield Piece(text, is_end and number == count, side)
                report(len(text), 0)

    def _of_many(self, stretch: Stretch, source: Source, report: Report) -> Iterator[Piece]:
        """Documents that begin in the stretch: lines, or rows."""
        path, is_lines = Path(source.path), kind_of(source) == ".jsonl"
        read = jsonl_documents if is_lines else parquet_documents
        told, weight = 0, source.size * (stretch.stop - stretch.start) / max(stretch.end, 1)
        for ordinal, text in read(path, stretch.start, stretch.stop, field=self.plan.settings.field):
            if is_lines and ordinal - stretch.start - told > PIECE:
                report(ordinal - stretch.start - told, 0)
                told = ordinal - stretch.start
            if not text:
                self.empty += 1
                continue
            self.text_bytes += len(text)
            side = self._side(stretch.source, ordinal, f"{source.name}:{ordinal}", counts=True)
            for part, part_side in self._parts(text, side):
                yield from _pieces_of(part, part_side)
        report(weight - told, 0)

    def _side(self, source: int, ordinal: int, name: str, *, counts: bool) -> str:
        share = name_share(name)
        is_validation = share < self.plan.settings.validation_fraction
        extreme = Extreme(share, source, ordinal)
        if is_validation:
            self.highest = max(self.highest or extreme, extreme)
        else:
            self.lowest = min(self.lowest or extreme, extreme)
        side = VALIDATION if is_validation else TRAINING
        self.documents[side] += counts
        if self.forced is not None and self.forced[:2] == (source, ordinal):
            return self.forced.side
        return side

    def _parts(self, text: bytes, side: str) -> list[tuple[bytes, str]]:
        if side in SIDES:
            return [(text, side)]
        at = len(text) - tail(len(text), self.plan.settings.validation_fraction)
        if self.plan.tokenizer != BYTES:
            at = character_start(text, at)
        return [(text[:at], TRAINING), (text[at:], VALIDATION)]


def _pieces_of(text: bytes, side: str) -> Iterator[Piece]:
    if len(text) <= PIECE:
        yield Piece(text, True, side)
        return
    count = num_pieces(len(text))

    def read(start: int, stop: int) -> bytes:
        return text[start:stop]

    for number, piece in enumerate(pieces(read, 0, count, length=len(text)), start=1):
        yield Piece(piece, number == count, side)
