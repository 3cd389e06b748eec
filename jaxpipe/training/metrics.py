"""``metrics.jsonl``: one JSON object a line, written as it happens, continued by a resumed run.

``samples.jsonl`` is such a file, too.

A line is flushed when it is written: what a killed run logged is in the file, but its last line may be torn.
A run that resumes from step k will do the steps after k once more, so their lines are dropped first, as are a
torn last line and the ``final`` one, for the run goes on. Write the lines of step k before its checkpoint;
then every step has its lines once, however often the run was interrupted.

JSON has no number for what is not finite: it is written as one of the texts ``"NaN"``, ``"Infinity"`` and
``"-Infinity"``, which ``float()`` reads. Finite floats come back to the bit.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from jaxpipe.errors import InputError
from jaxpipe.training.atomic_write import write_text_atomically
from jaxpipe.training.storage import storing

_OF_EVALUATION = frozenset({"eval_loss", "prompt"})
"""Keys that only a line of an evaluation, or of the sample that follows it, has."""


@contextmanager
def open_metrics(
    path: Path | str, *, resume_step: int | None = None, is_evaluated: bool = True
) -> Iterator[TextIO]:
    """The file to pass to ``write_metrics``: a new one, or what it holds up to ``resume_step``.

    is_evaluated: whether the evaluation of that step counts as done; if not, its line, or that of its
        sample, is dropped too.

    Raises:
        FileExistsError: a new file is asked for, but there is one.
        InputError: a line before the last is no JSON object with a step.
        StorageError: it cannot be written.
    """
    path = Path(path)
    if resume_step is not None and path.exists():
        write_text_atomically(path, "".join(_lines_until(path, resume_step, is_evaluated=is_evaluated)))
    with storing(path):
        file = path.open("x" if resume_step is None else "a", encoding="utf-8")
    try:
        yield file
    finally:
        with storing(path):  # tries once more to write what could not be written
            file.close()


def write_metrics(file: TextIO, record: Mapping[str, Any]) -> None:
    """Append ``record``, which has a ``step``, as one line. Values are texts, bools, ints, floats or None.

    Raises:
        StorageError: it cannot be written.
    """
    line = {key: _finite_or_text(value) for key, value in record.items()}
    assert "step" in line, line
    with storing(file.name):
        file.write(json.dumps(line, allow_nan=False) + "\n")
        file.flush()


def _finite_or_text(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _lines_until(path: Path, resume_step: int, *, is_evaluated: bool) -> Iterator[str]:
    """The whole lines of steps up to ``resume_step``, without a ``final`` one, each with its newline."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        record = _record(line)
        if record is None and number < len(lines):
            raise InputError(
                f"each line of {path} must be a JSON object with a step, but line {number} is {line[:40]!r}; "
                "repair or remove that line, then resume"
            )
        if record is None or record["step"] > resume_step or record.get("final"):
            continue
        if is_evaluated or record["step"] < resume_step or _OF_EVALUATION.isdisjoint(record):
            yield line + "\n"


def _record(line: str) -> dict[str, Any] | None:
    """The object of ``line``, or None: the line is torn, or was not written by ``write_metrics``."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # no JSON; a number of thousands of digits; thousands of brackets
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None
