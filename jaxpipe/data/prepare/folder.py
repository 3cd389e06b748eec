"""A folder of prepared tokens, from nothing or from where an earlier attempt was left.

The plan is written first, the manifest last. Between them each unit that has a record is done, so an attempt
that was killed is gone on with, and what comes out is the same to the byte, however often that happened and
however many workers there were. A folder belongs to one plan: other text, another tokenizer or other
settings are refused.
"""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxpipe.data.files import find_files
from jaxpipe.data.prepare.plan import Plan, Settings, make_plan
from jaxpipe.data.prepare.pool import Task
from jaxpipe.data.prepare.shard import Record, record_file, storage_error
from jaxpipe.data.prepare.shard_files import PARTIAL, write_whole
from jaxpipe.data.prepare.units import OnProgress, Progress, make_units
from jaxpipe.data.prepared import MANIFEST, PLAN, SHARDS, TOKENIZER, Manifest, read_manifest, write_manifest
from jaxpipe.data.tokenizer import Tokenizer, copy_tokenizer, load_tokenizer
from jaxpipe.data.tokens import token_dtype
from jaxpipe.errors import InputError, StorageError
from jaxpipe.units import counted

_FLAGS = {
    "field": "--field",
    "validation_fraction": "--validation-fraction",
    "unit_bytes": "--shard-size in bytes",
}
"""What the settings of a plan are called by whoever gives them."""

_OTHER = "give another -o, or remove that folder"


def prepare(
    paths: Sequence[str],
    folder: Path,
    *,
    tokenizer: str | None = None,
    end_of_document: str | None = None,
    settings: Settings | None = None,
    workers: int,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Turn the files that ``paths`` mean into the tokens of ``folder``; what it then holds.

    Starts processes that import the main module, as ``multiprocessing`` does, so a script that calls this
    wants ``if __name__ == "__main__"``.

    Raises:
        InputError: the text, the tokenizer or the folder do not fit, or changed meanwhile.
        StorageError: the disk is full, or a worker was killed; what was done is kept.
    """
    loaded = load_tokenizer(tokenizer, end_of_document=end_of_document)
    try:
        plan = make_plan(find_files(paths), settings or Settings(), loaded)
    except OSError as error:  # of a file that has gone meanwhile, for example
        name = error.filename or "the text"
        raise InputError(
            f"{name} cannot be read: {error.strerror or error}; mend that, or leave it out"
        ) from error
    try:
        folder = folder.expanduser().absolute()
        _refuse_others(folder, plan)
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            _refuse_others(folder, plan)  # once more, when nobody else can write
            if (folder / MANIFEST).exists():
                _tidy(folder, plan)
                return read_manifest(folder)
            write_whole(folder / PLAN, plan.to_json().encode())
            (folder / SHARDS).mkdir(exist_ok=True)
            copy_tokenizer(loaded, folder / TOKENIZER)
            task = Task(plan, folder, tokenizer, end_of_document)
            records = make_units(task, workers=workers, on_progress=on_progress or _no_progress)
            _refuse_changed(plan)
            manifest = _manifest(plan, records, loaded)
            write_whole(folder / MANIFEST, write_manifest(manifest).encode())
            _tidy(folder, plan)
            return manifest
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(folder, error) from error


def _tidy(folder: Path, plan: Plan) -> None:
    """What says which units are done has served when the manifest is there."""
    for number in range(len(plan.units)):
        record_file(folder, number).unlink(missing_ok=True)


def _refuse_others(folder: Path, plan: Plan) -> None:
    """A folder is new, or one of the same plan."""
    file = folder / PLAN
    if folder.exists() and not folder.is_dir():
        raise InputError(f"-o {folder} is a file; name a folder")
    if not file.exists():
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
        held = sorted(name for name in names if name not in (".lock", PLAN + PARTIAL))
        if held:
            raise InputError(
                f"-o {folder} must be new or empty, but it has {', '.join(held[:5])}; name another"
            )
        return
    try:
        before, now = json.loads(file.read_bytes()), json.loads(plan.to_json())
        differing = _differences(before, now)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is no plan of jaxpipe data prepare; {_OTHER}") from error
    if differing:
        raise InputError(
            f"-o {folder} was begun with other text or settings ({'; '.join(differing)}); give what it was "
            f"begun with, or {_OTHER.removeprefix('give ')}"
        )


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """In words, what differs between two plans."""
    found = [
        f"{_FLAGS.get(key, key)} was {before['settings'][key]} and is {value}"
        for key, value in now["settings"].items()
        if before["settings"][key] != value
    ]
    found += [
        f"another {key.replace('_', ' ')}"
        for key in ("tokenizer", "end_of_document")
        if before[key] != now[key]
    ]
    files = [{source["name"]: source for source in plan["sources"]} for plan in (before, now)]
    changed = [name for name in files[0] if files[0][name] != files[1].get(name)]
    changed += [name for name in files[1] if name not in files[0]]
    if changed or len(before["sources"]) != len(now["sources"]):
        found.append(f"{counted(len(changed), 'file')} changed, such as {', '.join(changed[:3])}")
    return found


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process, however it ends."""
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"another process is preparing {folder}; wait until it has ended") from error
        yield


def _refuse_changed(plan: Plan) -> None:
    """Text that changed while it was read is neither the old nor the new."""
    for source in plan.sources:
        try:
            stat = Path(source.path).stat()
            is_same = (stat.st_size, stat.st_mtime_ns) == (source.size, source.modified)
        except OSError:
            is_same = False
        if not is_same:
            raise InputError(f"{source.path} has changed while it was prepared; {_OTHER}, and begin anew")


def _manifest(plan: Plan, records: Sequence[Record], tokenizer: Tokenizer) -> Manifest:
    return Manifest(
        dtype=token_dtype(tokenizer.vocab_size).str,
        vocab_size=tokenizer.vocab_size,
        end_of_document=tokenizer.end_of_document,
        end_of_document_token=tokenizer.end_of_document_token,
        tokenizer=tokenizer.name,
        tokenizer_file=tokenizer.files[0].name if tokenizer.files else None,
        tokenizer_sha256=tokenizer.digest,
        field=plan.settings.field,
        validation_fraction=plan.settings.validation_fraction,
        text_bytes=sum(record.text_bytes for record in records),
        empty_documents=sum(record.empty_documents for record in records),
        shards=tuple(shard for record in records for shard in record.shards),
    )


def _no_progress(progress: Progress) -> None:
    """For whoever does not want to know."""
