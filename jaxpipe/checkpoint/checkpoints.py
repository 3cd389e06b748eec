"""Checkpoints of a run: the arrays and a JSON-able record of each step, whole or not there.

Orbax writes and reads the arrays (array_files.py). Which checkpoints there are, whether they are whole and
which to delete is decided here, from the disk. Orbax's own CheckpointManager keeps that list in memory, and
there it goes wrong (all seen with 0.12.8): an empty numbered folder counts as the latest step, saving at or
below the latest returns False, a failed save leaves a manager that reports a step that does not exist and
cannot save the next one, and a flipped bit in a file comes back as a wrong number. So

    save      fingerprint every array on its devices, and refuse what is not finite
              copy the arrays to the host, and return
              then, while training goes on, write the files to 100.unfinished/
              hash them, write the manifest, rename the folder to 100/
              delete what is older than the newest ``keep``, but for the best one if that is asked for
    restore   hash the files, compare names, shapes and dtypes, read, and compare the fingerprints

The next ``save``, ``check``, ``wait`` or ``close`` raises CheckpointError if the files could not be written.
A save that fails costs no older checkpoint.

Of several processes each writes its own shards, so all must save, and see the same files; process 0 alone
makes, renames and deletes folders.
"""

import errno
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import jax

from jaxpipe.checkpoint import array_files, manifest, step_folders
from jaxpipe.checkpoint.fingerprint import compile_examination, examine
from jaxpipe.checkpoint.manifest import Manifest, StoredArray
from jaxpipe.checkpoint.restoring import restore_arrays, some_of
from jaxpipe.checkpoint.template import check_arrays, named_leaves
from jaxpipe.errors import CheckpointError, DamagedError, InputError, NotFiniteError, first_line
from jaxpipe.units import format_bytes

_NO_ROOM = "the disk has no room"
_NO_SPACE = {_NO_ROOM, *(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))}
_LOGGER = logging.getLogger(__name__)


def open_checkpoints(directory: Path | str, *, keep: int, keeps_best: bool = False) -> "Checkpoints":
    """The checkpoints of ``directory``, which is made if need be; the newest ``keep`` are kept.

    keeps_best: the one with the lowest validation loss is kept besides.
    """
    if keep < 1:
        raise ValueError(f"keep={keep} must be at least 1: the newest checkpoint is never deleted")
    path = Path(directory).resolve()
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} must be the directory of the checkpoints, but it is a file; move it away")
    if Path(directory).is_symlink() and not path.exists():
        raise InputError(f"{directory} leads to {path}, which is not there; bring it back, or unlink it")
    if _is_first():
        path.mkdir(parents=True, exist_ok=True)
    return Checkpoints(path, keep=keep, keeps_best=keeps_best)


class _NotDeletedError(CheckpointError):
    """A save is complete, and too many older ones are left."""


class _Saving(NamedTuple):
    """A save that may be in progress."""

    step: int
    finished: Future[None]


class Checkpoints:
    """The checkpoints of one directory, and the save that may be in progress. One writer at a time.

    A context manager: leaving it waits for the last save.
    """

    def __init__(self, directory: Path, *, keep: int, keeps_best: bool) -> None:
        self.directory = directory
        self.keep = keep
        self.keeps_best = keeps_best
        self._saving: _Saving | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._examination: jax.stages.Compiled | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except CheckpointError as failed:
            if error is None:
                raise
            _LOGGER.warning("%s", failed)  # what is under way is told as well

    def compile_for(self, like: Any) -> None:
        """Compile now what a ``save`` runs, for arrays like these ``jax.ShapeDtypeStruct`` with shardings."""
        self._examination = compile_examination(named_leaves(like))

    def steps(self) -> tuple[int, ...]:
        """The steps of all that has a step's number for a name, ascending, whole or not."""
        return step_folders.numbered_steps(self.directory)

    def latest(self) -> int | None:
        """The step of the newest complete checkpoint; one that is still being written does not count."""
        return max(step_folders.complete_steps(self.directory), default=None)

    def save(
        self, step: int, arrays: Any, info: Mapping[str, Any], *, validation_loss: float | None = None
    ) -> None:
        """Save ``arrays`` and ``info`` as the checkpoint of ``step``.

        ``arrays`` may be donated as soon as this returns.

        Args:
            step: greater than that of any complete checkpoint.
            arrays: a pytree of jax Arrays, sharded as they are, all values finite.
            info: a mapping that JSON gives back unchanged.
            validation_loss: of this step, if there was an evaluation; decides which checkpoint is the best.

        Raises:
            ValueError: the step is not new, a leaf is no array, or JSON would change ``info``
                (TypeError if JSON has no form for it).
            NotFiniteError: an array has a value that is not finite; its name is told.
            CheckpointError: this checkpoint, or the one saved before it, could not be written.
        """
        self.wait()
        if _is_first():
            try:
                self._make_room(step)
            except OSError as error:
                raise self._not_written(step, error) from error
        named = named_leaves(arrays)
        check_arrays(named)
        manifest.check_info(info)
        saved_at = datetime.now(UTC).isoformat(timespec="seconds")
        stored = _examined(step, named, self._examination)
        unhashed = Manifest(step, saved_at, validation_loss, info, stored, files={})
        folder = step_folders.unfinished_folder(self.directory, step)
        try:
            if _is_first():
                self._check_space(sum(array.nbytes for array in named.values()))
                folder.mkdir()
            wait_for_files = array_files.start_writing(folder / array_files.FOLDER, named)
        except Exception as error:
            raise self._not_written(step, error) from error
        self._saving = _Saving(step, self._thread.submit(self._finish, unhashed, wait_for_files))

    def add_validation_loss(self, step: int, validation_loss: float | None, info: Mapping[str, Any]) -> None:
        """Record what an evaluation has found of a complete checkpoint after it was saved.

        Process 0 alone may. DamagedError if there is no complete checkpoint of that step, CheckpointError
        if it cannot be written.
        """
        manifest.check_info(info)
        found = self.read_manifest(step)._replace(validation_loss=validation_loss, info=info)
        folder = step_folders.step_folder(self.directory, step)
        try:
            manifest.write_manifest(folder, found)
        except OSError as error:
            raise CheckpointError(
                f"the validation loss of checkpoint {folder} could not be recorded: {first_line(error)}; "
                f"mend that, then resume from step {step}"
            ) from error
        self._remove_old(step)

    def check(self) -> None:
        """Raise CheckpointError if the last save has failed; waits for nothing."""
        if self._saving is not None and self._saving.finished.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last save is complete, and the checkpoints that are too old are gone.

        Raises:
            CheckpointError: it could not be written; the checkpoints before it are as they were.
        """
        if self._saving is None:
            return
        (step, finished), self._saving = self._saving, None
        try:
            finished.result()
        except _NotDeletedError:
            raise
        except Exception as error:
            raise self._not_written(step, error) from error

    def close(self) -> None:
        """Wait for the last save, and let nothing be saved any more; see ``wait``."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def read_manifest(self, step: int) -> Manifest:
        """What the checkpoint of ``step`` holds; DamagedError if it is not complete."""
        return step_folders.read_complete(self.directory, step)

    def find_damage(self, step: int, *, share: tuple[int, int] = (0, 1)) -> str | None:
        """What is wrong with the files of ``step``, in words; None if they are what was written.

        share: look only at part ``share[0]`` of ``share[1]`` equal ones.
        """
        try:
            files = self.read_manifest(step).files
        except DamagedError as error:
            return str(error)
        folder = step_folders.step_folder(self.directory, step)
        return manifest.find_damage(folder, manifest.share_of(files, *share))

    def restore(self, step: int, like: Any) -> Any:
        """The arrays of ``step``, with the tree, shapes, dtypes and shardings of ``like``.

        Mesh and number of devices may differ from the writer's. The arrays can be donated. Ask
        ``find_damage`` before: here it is only made sure that the values are those that were saved.

        Args:
            step: that of a complete checkpoint.
            like: a pytree of ``jax.ShapeDtypeStruct`` with shardings.

        Raises:
            InputError: its leaves differ from those of ``like`` in name, shape or dtype.
            DamagedError: it is not complete, or the values are not those that were saved.
            CheckpointError: it cannot be read.
            ValueError: a leaf of ``like`` has no sharding.
        """
        stored = self.read_manifest(step).arrays
        folder = step_folders.step_folder(self.directory, step)
        return restore_arrays(folder, stored, like)

    def set_aside(self, step: int) -> Path:
        """Rename what is damaged, so that ``step`` can be saved; the new path. Process 0 alone may.

        Raises:
            CheckpointError: the directory cannot be written.
        """
        try:
            return step_folders.set_aside(self.directory, step)
        except OSError as error:
            folder = step_folders.step_folder(self.directory, step)
            raise CheckpointError(f"{folder} cannot be renamed: {first_line(error)}; mend that") from error

    def num_set_aside(self) -> int:
        """How many damaged ones lie there under another name."""
        return len(step_folders.damaged_folders(self.directory))

    def _finish(self, unhashed: Manifest, wait_for_files: Callable[[], None]) -> None:
        """What is left of a save when the arrays have left the devices; runs while training goes on."""
        wait_for_files()
        if not _is_first():
            return
        folder = step_folders.unfinished_folder(self.directory, unhashed.step)
        manifest.write_manifest(folder, unhashed._replace(files=manifest.hash_files(folder)))
        in_the_way = step_folders.publish(self.directory, unhashed.step)
        if in_the_way is not None:
            _LOGGER.warning("%s was no checkpoint of its step, and is set aside", in_the_way)
        self._remove_old(unhashed.step)

    def _remove_old(self, step: int) -> None:
        """Now that ``step`` is complete."""
        try:
            step_folders.remove_old(self.directory, keep=self.keep, keeps_best=self.keeps_best)
        except OSError as error:
            raise _NotDeletedError(
                f"checkpoint {step_folders.step_folder(self.directory, step)} is complete, but an older one "
                f"cannot be deleted: {first_line(error)}; mend that, then resume"
            ) from error

    def _make_room(self, step: int) -> None:
        latest = self.latest()
        if latest is not None and step <= latest:
            raise ValueError(
                f"checkpoints are saved in ascending order: step={step}, but {self.directory} holds "
                f"{latest}; resume from {latest} or use another directory"
            )
        step_folders.remove_leftovers(self.directory)

    def _check_space(self, num_bytes: int) -> None:
        """Raise OSError if the disk cannot hold so many bytes more: told before anything is written."""
        free = shutil.disk_usage(self.directory).free
        if free < num_bytes:
            raise OSError(f"{_NO_ROOM}: {format_bytes(num_bytes)} of {format_bytes(free)} that are free")

    def _not_written(self, step: int, error: Exception) -> CheckpointError:
        """What to raise instead of ``error``; what there is of the checkpoint gives its space back."""
        if _is_first():
            step_folders.remove_unfinished(self.directory, step)
        folder, latest = step_folders.step_folder(self.directory, step), self._latest_if_readable()
        again = "start again" if latest is None else f"resume from step {latest}"
        cause = first_line(error)
        remedy = "free space" if any(words in cause for words in _NO_SPACE) else "mend that"
        return CheckpointError(f"checkpoint {folder} could not be written: {cause}; {remedy}, then {again}")

    def _latest_if_readable(self) -> int | None:
        try:
            return self.latest()
        except OSError:  # the folder is gone, which is what was not written to
            return None


def _is_first() -> bool:
    """Whether this is the process that makes and deletes folders."""
    return jax.process_index() == 0


def _examined(
    step: int, named: Mapping[str, jax.Array], compiled: jax.stages.Compiled | None
) -> dict[str, StoredArray]:
    """The arrays as the manifest records them; NotFiniteError if they must not be saved."""
    examined = examine(named, compiled=compiled)
    bad = {name: found.num_not_finite for name, found in examined.items() if found.num_not_finite}
    if bad:
        counts = [f"{number} of {named[name].size} in {name}" for name, number in bad.items()]
        raise NotFiniteError(
            f"step {step}: all values of a checkpoint must be finite, but these are not: {some_of(counts)}; "
            "it is not saved"
        )
    return {
        name: StoredArray(array.dtype.name, array.shape, examined[name].fingerprint)
        for name, array in named.items()
    }
