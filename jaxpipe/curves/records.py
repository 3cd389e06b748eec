"""What ``metrics.jsonl`` holds, as those who draw it want it: records of one step each, and their numbers.

The file may be that of a run in progress, or of a killed one: its last line may be torn, and counts as not
there. Any other line that is no record is refused.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxpipe.errors import InputError

Record = Mapping[str, Any]
"""One line: a ``step``, which is an int, and what is told of it; every number fits a float."""

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_LAST_STEP = 2**63 - 1
"""TensorBoard's steps are int64."""


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
                f"each line of {path} must be a JSON object whose step is a whole number below 2^63 and "
                f"whose numbers fit a float, but line {number} is {line[:40]!r}; repair or remove that line"
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
    except (ValueError, RecursionError):  # no JSON; a number of thousands of digits; thousands of brackets
        return None
    is_one = isinstance(record, dict) and _is_step(record.get("step")) and all(map(_fits, record.values()))
    return record if is_one else None


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LAST_STEP


def _fits(value: Any) -> bool:
    return not isinstance(value, int) or abs(value) <= sys.float_info.max
