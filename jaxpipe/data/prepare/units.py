"""All units of a plan, of which those are made that are not there; and a document on either side.

Where by their names all documents would be on one side, the one that is nearest to the other side is forced
there, and a single one is cut in two. What the records say of names does not depend on what was forced, so an
attempt that was interrupted comes to the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxpipe.data.prepare.plan import Plan, Stretch, kind_of
from jaxpipe.data.prepare.pool import Task, make_shards
from jaxpipe.data.prepare.shard import Record, read_record
from jaxpipe.data.prepare.shard_files import PARTIAL
from jaxpipe.data.prepare.split import TRAINING, VALIDATION, Extreme, Forced
from jaxpipe.data.prepared import END_BYTES, SHARDS, ends_file, size_fault, tokens_file
from jaxpipe.data.tokenizer import load_tokenizer
from jaxpipe.data.tokens import token_dtype
from jaxpipe.errors import InputError

TAIL = "tail"
"""The side of a document that is cut in two."""


@dataclass(frozen=True)
class Progress:
    """Bytes of the text files that are done, of how many; and tokens written since this attempt began."""

    done: int
    total: int
    tokens: int


OnProgress = Callable[[Progress], None]


def make_units(task: Task, *, workers: int, on_progress: OnProgress) -> list[Record]:
    """The records of all units, in their order."""
    for file in (task.folder / SHARDS).glob(f"*{PARTIAL}"):  # what a killed attempt was writing
        file.unlink()
    records = [_finished(task, number) for number in range(len(task.plan.units))]
    _make(
        task, [number for number, record in enumerate(records) if record is None], None, workers, on_progress
    )
    records = [read_record(task.folder, number) for number in range(len(task.plan.units))]
    whole = [record for record in records if record is not None]
    assert len(whole) == len(records), "a worker that ends well has written its records"
    forced = _forced(task.plan, whole)
    wrong = [
        number
        for number, unit in enumerate(task.plan.units)
        if whole[number].forced != (forced if _holds(task.plan, unit, forced) else None)
    ]
    for_it = [number for number in wrong if _holds(task.plan, task.plan.units[number], forced)]
    _make(task, [number for number in wrong if number not in for_it], None, workers, on_progress)
    _make(task, for_it, forced, workers, on_progress)
    return [read_record(task.folder, number) or whole[number] for number in range(len(whole))]


def _make(
    task: Task, units: Sequence[int], forced: Forced | None, workers: int, on_progress: OnProgress
) -> None:
    if not units:
        return
    total = sum(source.size for source in task.plan.sources)
    sizes = [sum(stretch.size for stretch in unit) for unit in task.plan.units]
    before = round(total * (1 - sum(sizes[number] for number in units) / max(sum(sizes), 1)))

    def on_count(done: int, tokens: int) -> None:
        on_progress(Progress(min(before + done, total), total, tokens))

    make_shards(task, units, forced, workers=workers, on_count=on_count)


def _finished(task: Task, number: int) -> Record | None:
    """The record of a unit whose files are all there."""
    record = read_record(task.folder, number)
    if record is None:
        return None
    tokenizer = load_tokenizer(task.tokenizer, end_of_document=task.end_of_document)
    width = token_dtype(tokenizer.vocab_size).itemsize
    for shard in record.shards:
        if size_fault(tokens_file(task.folder, shard), shard.tokens * width):
            return None
        if size_fault(ends_file(task.folder, shard), shard.documents * END_BYTES):
            return None
    return record


def _forced(plan: Plan, records: Sequence[Record]) -> Forced | None:
    """The document that its name would have on the wrong side, if one side is to have some and has none."""
    training, validation = (sum(record.documents[side] for record in records) for side in range(2))
    if training + validation == 0:
        count = len(plan.sources)
        which = f"all {count} files hold" if count > 1 else "the only file holds"
        raise InputError(f"{which} no text; give files that do")
    if plan.settings.validation_fraction == 0:
        return None
    lowest = min((record.lowest_training for record in records if record.lowest_training), default=None)
    highest = max(
        (record.highest_validation for record in records if record.highest_validation), default=None
    )
    if training + validation == 1:
        return _tail_of(plan, records, lowest or highest)
    if validation == 0 and lowest is not None:
        return Forced(lowest.source, lowest.ordinal, VALIDATION)
    if training == 0 and highest is not None:
        return Forced(highest.source, highest.ordinal, TRAINING)
    return None


def _tail_of(plan: Plan, records: Sequence[Record], only: Extreme | None) -> Forced:
    assert only is not None
    source = plan.sources[only.source]
    if not kind_of(source) or sum(record.text_bytes for record in records) < 2:
        raise InputError(
            f"{source.path} holds the only document, too little to split; give more text, that file "
            "alone, or --validation-fraction 0"
        )
    return Forced(only.source, only.ordinal, TAIL)


def _holds(plan: Plan, unit: Sequence[Stretch], forced: Forced | None) -> bool:
    """Whether the document may be in the unit; of rows nobody knows which group they are in."""
    if forced is None:
        return False
    is_of_lines = kind_of(plan.sources[forced.source]) == ".jsonl"
    return any(
        stretch.source == forced.source
        and (not is_of_lines or stretch.start <= forced.ordinal < stretch.stop)
        for stretch in unit
    )
