"""The manifest of a checkpoint: what it holds, and the hash of every file and of every array.

::

    100/manifest.json        step, time, validation loss, info, arrays, files, and the SHA-256 of all that
    100/arrays/...           Orbax's files

It is written last, when all other files are on the disk. So a checkpoint whose manifest is there and agrees
with itself was written to its end, and one whose files have the hashes of the manifest is what was written.
Files are hashed by SHA-256, as ``sha256sum`` does; arrays by fingerprint.py, which knows their values alone
and not how they lie in files or on devices.
"""

import errno
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from jaxpipe.errors import CheckpointError, DamagedError, InputError

FILE_NAME = "manifest.json"

_FORMAT = 1
_SEAL = "sha256"
_MAX_THREADS = 8
_MAX_NAMED = 3


class StoredArray(NamedTuple):
    """``dtype`` by NumPy's name, ``shape``, and the fingerprint of its values."""

    dtype: str
    shape: tuple[int, ...]
    fingerprint: str

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


class StoredFile(NamedTuple):
    """Size in bytes, and SHA-256 in hexadecimal digits."""

    size: int
    sha256: str


class Manifest(NamedTuple):
    """What a checkpoint holds.

    saved_at: UTC, in ISO 8601, when its save began.
    validation_loss: nats per token at this step; None if there was no evaluation.
    info: whatever the run saved besides the arrays.
    arrays: by the names of their leaves.
    files: by their paths, relative to the checkpoint's folder, with slashes.
    """

    step: int
    saved_at: str
    validation_loss: float | None
    info: Mapping[str, Any]
    arrays: Mapping[str, StoredArray]
    files: Mapping[str, StoredFile]

    @property
    def num_bytes(self) -> int:
        """Of all files together."""
        return sum(file.size for file in self.files.values())


def check_info(info: Mapping[str, Any]) -> None:
    """Raise ValueError if JSON would change ``info``, TypeError if it has no form for it."""
    returned = json.loads(json.dumps(dict(info), allow_nan=False))
    changed = [key for key in info if key not in returned or returned[key] != info[key]]
    if changed:
        raise ValueError(
            f"info must come back from JSON unchanged, which {', '.join(map(repr, changed))} does not; "
            "use texts as keys, lists for tuples and plain numbers"
        )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it into ``folder``, whole or not at all, and wait until the disk has it."""
    content = {
        "format": _FORMAT,
        "step": manifest.step,
        "saved_at": manifest.saved_at,
        "validation_loss": manifest.validation_loss,
        "info": dict(manifest.info),
        "arrays": {name: array._asdict() for name, array in manifest.arrays.items()},
        "files": {name: file._asdict() for name, file in manifest.files.items()},
    }
    beside = folder / f"{FILE_NAME}.unfinished"
    with beside.open("w", encoding="utf-8") as file:
        json.dump(content | {_SEAL: _hash_of(content)}, file, indent=1, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(folder / FILE_NAME)
    sync_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the checkpoint in ``folder``.

    Raises:
        DamagedError: there is none, or it is not what was written; the message is what is wrong with it.
        CheckpointError: it cannot be read for other reasons than damage.
        InputError: another jaxpipe has written it.
    """
    try:
        text = (folder / FILE_NAME).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedError(f"it has no {FILE_NAME}") from error
    except UnicodeDecodeError as error:
        raise DamagedError(f"its {FILE_NAME} is torn or was changed") from error
    except OSError as error:
        raise DamagedError(f"its {FILE_NAME} {_unreadable(folder / FILE_NAME, error)}") from error
    try:
        content = json.loads(text)
        seal = content.pop(_SEAL)
        is_own = seal == _hash_of(content)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DamagedError(f"its {FILE_NAME} is torn or was changed") from error
    if not is_own:
        raise DamagedError(f"its {FILE_NAME} was changed after it was written")
    if (found := content.get("format")) != _FORMAT:
        raise InputError(
            f"{folder / FILE_NAME} has format {found}, but this jaxpipe reads {_FORMAT}; "
            "use the one that wrote it"
        )
    return Manifest(
        content["step"],
        content["saved_at"],
        content["validation_loss"],
        content["info"],
        {
            name: StoredArray(array["dtype"], tuple(array["shape"]), array["fingerprint"])
            for name, array in content["arrays"].items()
        },
        {name: StoredFile(**file) for name, file in content["files"].items()},
    )


def hash_files(folder: Path) -> dict[str, StoredFile]:
    """Size and hash of every file below ``folder``; when it returns, the disk has them all.

    Raises:
        OSError: one cannot be read or brought to the disk.
    """
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(_num_threads()) as pool:
        hashed = list(pool.map(lambda name: _hash_file(folder / name, sync=True), names))
    for path in folders:
        sync_folder(path)
    return dict(zip(names, hashed, strict=True))


def find_damage(folder: Path, files: Mapping[str, StoredFile]) -> str | None:
    """What is wrong with these files of ``folder``, in words; None if they are what was written.

    Raises:
        CheckpointError: one cannot be read for other reasons than damage.
    """
    with ThreadPoolExecutor(_num_threads()) as pool:
        damage = [text for text in pool.map(lambda item: _damage_of(folder, *item), files.items()) if text]
    if len(damage) > _MAX_NAMED:
        damage = [*damage[:_MAX_NAMED], f"and {len(damage) - _MAX_NAMED} more files"]
    return ", ".join(damage) or None


def share_of(files: Mapping[str, StoredFile], index: int, count: int) -> dict[str, StoredFile]:
    """The part that is number ``index`` of ``count``, of about as many bytes as the others."""
    by_size = sorted(files.items(), key=lambda item: (-item[1].size, item[0]))
    return dict(by_size[index::count])


def changed_arrays(stored: Mapping[str, StoredArray], found: Mapping[str, str]) -> Iterator[str]:
    """The names of the arrays whose fingerprint in ``found`` is not the stored one."""
    yield from (name for name, array in stored.items() if found.get(name) != array.fingerprint)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names of the files in ``folder``."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hash_of(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _hash_file(path: Path, *, sync: bool) -> StoredFile:
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return StoredFile(file.tell(), digest)


def _damage_of(folder: Path, name: str, wanted: StoredFile) -> str | None:
    try:
        found = _hash_file(folder / name, sync=False)
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} {_unreadable(folder / name, error)}"
    if found.size != wanted.size:
        return f"{name} has {found.size} bytes of {wanted.size}"
    return None if found.sha256 == wanted.sha256 else f"{name} holds other bytes than were written"


def _unreadable(path: Path, error: OSError) -> str:
    """In words, if the disk has lost it; raises CheckpointError where only the reading failed."""
    if error.errno != errno.EIO:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}; mend that first") from error
    return f"cannot be read ({error.strerror})"


def _num_threads() -> int:
    return min(_MAX_THREADS, os.cpu_count() or 1)
