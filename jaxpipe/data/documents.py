"""Documents as bytes, one after the other, however large the file is.

A .txt, .py or .md file is one document, a .jsonl file has one a line, a .parquet file one a row.
"""

import itertools
import json
import reprlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from jaxpipe.data.files import TextFile
from jaxpipe.errors import InputError, first_line

LONGEST_LINE = 64 * 2**20
"""Bytes of a line of .jsonl, since JSON must be read whole."""

_ROWS = 4 * 2**20
"""Bytes of a .parquet file that are read together, about."""


def read_documents(file: TextFile, *, field: str) -> list[bytes]:
    """The documents of a file that are not empty, in order; bytes need not be valid UTF-8.

    ``InputError`` names the file, and of a .jsonl file the first line that has no text in ``field``.
    """
    try:
        if file.path.suffix == ".parquet":
            found = parquet_documents(file.path, 0, num_row_groups(file.path, field=field), field=field)
        elif file.path.suffix == ".jsonl":
            found = jsonl_documents(file.path, 0, file.path.stat().st_size, field=field)
        else:
            found = iter([(0, file.path.read_bytes())])
        return [document for _, document in found if document]
    except OSError as error:
        raise InputError(f"{file.path} cannot be read: {error.strerror}") from error


def jsonl_documents(path: Path, start: int, stop: int, *, field: str) -> Iterator[tuple[int, bytes]]:
    """``(offset, text)`` of the lines that begin in these bytes and are not blank; a text may be empty."""
    with path.open("rb") as file:
        if start:
            file.seek(start - 1)
            _skip_line(file)
        while (offset := file.tell()) < stop:
            if not (line := file.readline(LONGEST_LINE + 1)):
                break  # the file has become shorter
            if len(line) > LONGEST_LINE:
                raise InputError(
                    f"{path}:{line_number(path, offset)}: a line has at most {LONGEST_LINE:,} bytes; "
                    "write such a document to a .txt file of its own"
                )
            if line.strip():
                yield offset, _text_of_line(line, field=field, path=path, offset=offset)


def line_number(path: Path, offset: int) -> int:
    """Of the line that begins at ``offset``, from 1."""
    number = 1
    with path.open("rb") as file:
        while offset > 0 and (block := file.read(min(offset, 2**20))):
            number += block.count(b"\n")
            offset -= len(block)
    return number


def num_row_groups(path: Path, *, field: str) -> int:
    """Of a .parquet file whose column ``field`` holds text; ``InputError`` if it is not such a file."""
    return len(row_group_sizes(path, field=field))


def row_group_sizes(path: Path, *, field: str) -> list[int]:
    """Bytes of the column in each row group, before compression."""
    with _parquet(path) as file:
        names = file.schema_arrow.names
        if field not in names:
            raise InputError(
                f"{path}: there is no column {field!r} (it has {', '.join(names) or 'none'}); "
                "set data.field (--field)"
            )
        kind = str(file.schema_arrow.field(field).type)
        if kind not in ("string", "large_string", "string_view", "binary", "large_binary"):
            raise InputError(f"{path}: column {field!r} must be text, found {kind}; set data.field (--field)")
        groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
        return [_column(group, field).total_uncompressed_size for group in groups]


def parquet_documents(path: Path, first: int, behind: int, *, field: str) -> Iterator[tuple[int, bytes]]:
    """``(row, text)`` of row groups ``first`` to ``behind`` - 1; null is an empty text."""
    with _parquet(path) as file:
        row = sum(file.metadata.row_group(number).num_rows for number in range(first))
        for number in range(first, behind):
            group = file.metadata.row_group(number)
            a_row = _column(group, field).total_uncompressed_size // max(group.num_rows, 1) + 1
            rows = min(max(_ROWS // a_row, 1), 4096)
            try:
                for batch in file.iter_batches(rows, row_groups=[number], columns=[field], use_threads=False):
                    for text in batch.column(0).to_pylist():
                        yield row, _as_bytes(text)
                        row += 1
            except OSError as error:  # damaged; of the disk it has a number
                if error.errno is not None:
                    raise
                raise _damaged(path, error) from error


def _skip_line(file: Any) -> None:
    while (block := file.readline(2**20)) and not block.endswith(b"\n"):
        pass


def _as_bytes(text: str | bytes | None) -> bytes:
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    return text or b""


def _column(group: Any, field: str) -> Any:
    """The metadata of the chunk of a column that holds plain values."""
    chunks = (group.column(number) for number in range(group.num_columns))
    return next(chunk for chunk in chunks if chunk.path_in_schema == field)


def _parquet(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"{path} needs the package pyarrow; pip install 'jaxpipe[text]'") from error
    try:
        return pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
    except pyarrow.ArrowInvalid as error:
        raise _damaged(path, error) from error
    except OSError as error:  # of a footer that is none pyarrow raises one without a number
        if error.errno is not None:
            raise
        raise _damaged(path, error) from error


def _some(names: Collection[str]) -> str:
    """The first few, cut where they are long; a line may have any number of any length."""
    shown = [reprlib.repr(name)[1:-1] for name in itertools.islice(names, 8)]
    return ", ".join(shown + ["..."] * (len(names) > len(shown))) or "none"


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} is not a whole .parquet file ({first_line(error)}); mend or remove it")


def _text_of_line(line: bytes, *, field: str, path: Path, offset: int) -> bytes:
    def refused(reason: str) -> InputError:
        return InputError(f"{path}:{line_number(path, offset)}: {reason}")

    return _text_of_record(line, field, refused)


def _text_of_record(line: bytes, field: str, refused: Callable[[str], InputError]) -> bytes:
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise refused("the JSON is nested too deeply; mend or remove the line") from error
    except ValueError as error:  # JSON that is malformed, and bytes that are no UTF-8
        raise refused(f"not a line of JSON ({error}); mend or remove it") from error
    if not isinstance(record, dict) or field not in record:
        held = f"it has {_some(record)}" if isinstance(record, dict) else "it is no object"
        raise refused(f"there is no field {field!r} ({held}); set data.field (--field)")
    if not isinstance(record[field], str):
        raise refused(
            f"field {field!r} must be text, found {reprlib.repr(record[field])}; set data.field (--field)"
        )
    return record[field].encode("utf-8", "surrogatepass")
