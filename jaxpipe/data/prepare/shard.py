"""One unit of the text becomes a shard for each side: files that are written beside, and renamed when whole.

A record is written last, and says that a unit is done. Which side a document is on depends on its name and
where it begins, so units know nothing of each other; only where that would leave a side without any document
is one of them forced to the other side afterwards (``Forced``), and its unit made again.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from jaxpipe.data.corpus import name_share, tail
from jaxpipe.data.cuts import PIECE, Piece, character_start, num_pieces, pieces
from jaxpipe.data.documents import jsonl_documents, parquet_documents
from jaxpipe.data.prepare.plan import Plan, Source, Stretch, kind_of
from jaxpipe.data.prepared import END_BYTES, SHARDS, SIDES, Shard
from jaxpipe.data.tokenizer import BYTES, Tokenizer, encode_pieces
from jaxpipe.data.tokens import Tokens, token_dtype
from jaxpipe.errors import InputError, StorageError

TRAINING, VALIDATION = SIDES
PARTIAL = ".partial"
REMEDY = "run the same command again, which goes on from there"


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


@dataclass(frozen=True)
class Record:
    """What a unit gave. By their names, ``documents`` of each side; and those nearest to the other side."""

    shards: tuple[Shard, ...]
    documents: tuple[int, int]
    lowest_training: Extreme | None
    highest_validation: Extreme | None
    empty_documents: int
    text_bytes: int
    forced: Forced | None


Report = Callable[[float, int], None]
"""Told bytes of the files that are done, and tokens that are written."""


def make_shard(
    plan: Plan, number: int, folder: Path, tokenizer: Tokenizer, *, forced: Forced | None, report: Report
) -> None:
    """Write the files of unit ``number``, and its record.

    Raises:
        InputError: a document cannot be read, or is none.
        StorageError: the disk is full, or refuses otherwise.
    """
    split = _Split(plan, forced)
    try:
        record_file(folder, number).unlink(missing_ok=True)  # of a unit that is made again
        with ExitStack() as files:
            writers = {side: _Writer(folder, f"{number:05}.{side}", tokenizer) for side in SIDES}
            for writer in writers.values():
                files.enter_context(writer)
            for ids, piece in encode_pieces(tokenizer, split.pieces_of(plan.units[number], report)):
                writers[piece.side].add(ids, is_last=piece.is_last)
                report(0, len(ids) + piece.is_last)
            shards = [writer.finish(side) for side, writer in writers.items()]
        record = split.record(tuple(shard for shard in shards if shard is not None))
        _write_whole(record_file(folder, number), json.dumps(dataclasses.asdict(record)).encode())
    except OSError as error:
        raise _told(error, folder) from error


def record_file(folder: Path, number: int) -> Path:
    """The file whose presence says that a unit is done."""
    return folder / SHARDS / f"{number:05}.json"


def read_record(folder: Path, number: int) -> Record | None:
    """What a unit gave; None if it is not done, or its record is not readable."""
    try:
        values: dict[str, Any] = json.loads(record_file(folder, number).read_bytes())
    except (OSError, ValueError):
        return None
    return Record(
        tuple(Shard(**shard) for shard in values["shards"]),
        (values["documents"][0], values["documents"][1]),
        values["lowest_training"] and Extreme(*values["lowest_training"]),
        values["highest_validation"] and Extreme(*values["highest_validation"]),
        values["empty_documents"],
        values["text_bytes"],
        values["forced"] and Forced(*values["forced"]),
    )


def storage_error(folder: Path, error: OSError) -> StorageError:
    """The sentence for a disk that refuses."""
    what = error.filename or folder
    return StorageError(f"{what} cannot be written: {error.strerror or error}; make room, then {REMEDY}")


def _told(error: OSError, folder: Path) -> StorageError | InputError:
    """Of what is written or of what is read: the name tells."""
    if error.filename is None or Path(error.filename).is_relative_to(folder):
        return storage_error(folder, error)
    return InputError(f"{error.filename} cannot be read: {error.strerror}; mend that, then {REMEDY}")


@dataclass
class _Split:
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

    def record(self, shards: tuple[Shard, ...]) -> Record:
        counts = self.documents[TRAINING], self.documents[VALIDATION]
        return Record(shards, counts, self.lowest, self.highest, self.empty, self.text_bytes, self.forced)

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


class _Writer:
    """The two files of a shard, hashed while they are written; what is not finished leaves none."""

    def __init__(self, folder: Path, name: str, tokenizer: Tokenizer) -> None:
        self._paths = [folder / SHARDS / f"{name}.{kind}" for kind in ("tokens", "ends")]
        self._name = name
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._end = np.array([tokenizer.end_of_document], self._dtype)
        self._hashes = [hashlib.sha256(), hashlib.sha256()]
        self._files: list[BinaryIO] = []
        self._waiting: list[list[bytes]] = [[], []]
        self._tokens, self._documents, self._size = 0, 0, 0
        self._largest_id, self._largest_at = -1, 0

    def __enter__(self) -> "_Writer":
        for path in self._paths:
            path.unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for path, file in zip(self._paths, self._files, strict=False):
            file.close()
            _beside(path).unlink(missing_ok=True)

    def add(self, ids: Tokens, *, is_last: bool) -> None:
        """More of a document, and its end."""
        ids = np.concatenate([ids, self._end]) if is_last else ids
        if len(ids) and int(ids.max()) > self._largest_id:
            at = int(np.argmax(ids))
            self._largest_id, self._largest_at = int(ids[at]), self._tokens + at
        self._tokens += len(ids)
        self._waiting[0].append(ids.astype(self._dtype).tobytes())
        self._size += ids.nbytes
        if is_last:
            self._documents += 1
            self._waiting[1].append(self._tokens.to_bytes(END_BYTES, "little"))
        if self._size > 2**20:
            self._write()

    def finish(self, side: str) -> Shard | None:
        """Bring the files to the disk, and give them their names; None if there is nothing in them."""
        if not self._tokens:
            return None
        self._write()
        for path, file in zip(self._paths, self._files, strict=True):
            with _named(path):
                file.flush()
                os.fsync(file.fileno())
                _beside(path).replace(path)
        tokens_sha256, ends_sha256 = (digest.hexdigest() for digest in self._hashes)
        return Shard(
            name=self._name,
            side=side,
            tokens=self._tokens,
            documents=self._documents,
            tokens_sha256=tokens_sha256,
            ends_sha256=ends_sha256,
            largest_id=self._largest_id,
            largest_at=self._largest_at,
        )

    def _write(self) -> None:
        if not self._files:
            for path in self._paths:
                self._files.append(_beside(path).open("wb"))
        for number, path in enumerate(self._paths):
            block = b"".join(self._waiting[number])
            self._hashes[number].update(block)
            with _named(path):
                self._files[number].write(block)
        self._waiting, self._size = [[], []], 0


def _beside(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of writing name no file by themselves."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write_whole(path: Path, content: bytes) -> None:
    beside = _beside(path)
    with _named(path):
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
