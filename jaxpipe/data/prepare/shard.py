"""One unit of the text becomes a shard for each side, and a record, written last: the unit is done."""

import dataclasses
import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxpipe.data.prepare.plan import Plan
from jaxpipe.data.prepare.shard_files import ShardWriter, write_whole
from jaxpipe.data.prepare.split import TRAINING, VALIDATION, Extreme, Forced, Report, Split
from jaxpipe.data.prepared import SHARDS, SIDES, Shard
from jaxpipe.data.tokenizer import Tokenizer, encode_pieces
from jaxpipe.errors import InputError, StorageError

REMEDY = "run the same command again, which goes on from there"


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


def make_shard(
    plan: Plan, number: int, folder: Path, tokenizer: Tokenizer, *, forced: Forced | None, report: Report
) -> None:
    """Write the files of unit ``number``, and its record.

    Raises:
        InputError: a document cannot be read, or is none.
        StorageError: the disk is full, or refuses otherwise.
    """
    split = Split(plan, forced)
    try:
        record_file(folder, number).unlink(missing_ok=True)  # of a unit that is made again
        with ExitStack() as files:
            writers = {side: ShardWriter(folder, f"{number:05}.{side}", tokenizer) for side in SIDES}
            for writer in writers.values():
                files.enter_context(writer)
            for ids, piece in encode_pieces(tokenizer, split.pieces_of(plan.units[number], report)):
                writers[piece.side].add(ids, is_last=piece.is_last)
                report(0, len(ids) + piece.is_last)
            shards = [writer.finish(side) for side, writer in writers.items()]
        record = _record(split, tuple(shard for shard in shards if shard is not None))
        write_whole(record_file(folder, number), json.dumps(dataclasses.asdict(record)).encode())
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


def _record(split: Split, shards: tuple[Shard, ...]) -> Record:
    return Record(
        shards,
        (split.documents[TRAINING], split.documents[VALIDATION]),
        split.lowest,
        split.highest,
        split.empty,
        split.text_bytes,
        split.forced,
    )
