"""What ``metrics.jsonl`` holds, as those who draw it want it: records of one step each, and their numbers.

The file may be that of a run in progress, or of a killed one: its last line may be torn, and counts as not
there. Any other line that is no record is refused.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxpipe.errors import InputError

Record = Mapping[str, Any]
"""One line: a ``step``, and what is told of it."""

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def read_records(path: Path) -> list[Record]:
    """All records in the order of the file.

    Raises:
        InputError: a line before the last is no record.
        OSError: it cannot be read.
    """
    return list(parse_records(path.read_text(encoding="utf-8", errors="replace"), path))


def parse_records(text: str, path: Path) -> Iterator[Record]:
    """The records of the whole lines of ``text``, which is what ``path`` holds; InputError as above."""
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        record = _record(line)
        if record is not None:
            yield record
        elif number < len(lines):
            raise InputError(
                f"each line of {path} must be a JSON object with a step, but line {number} is {line[:40]!r}; "
                "repair or remove that line"
            )


def numbers_of(record: Record) -> dict[str, float]:
    """The values that make curves, by name: the numbers but for the step, also those that are not finite."""
    return {name: float(value) for name, value in record.items() if name != "step" and _is_number(value)}


def _is_number(value: Any) -> bool:
    return value in _NOT_FINITE if isinstance(value, str) else _is_plain_number(value)


def _is_plain_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _record(line: str) -> Record | None:
    """The object of ``line``; None for one that is torn or something else."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and _is_plain_number(record.get("step")) else None
