"""Checkpoints of a run: arrays and a JSON-able record for each step, through Orbax.

Orbax writes and reads one checkpoint: sharded arrays through TensorStore, in a temporary folder that is
renamed when all is written. Which checkpoints there are and which to delete is decided here, from the disk.
Orbax's own CheckpointManager keeps that list in memory, and there it goes wrong (all seen with 0.12.8): an
empty numbered folder counts as the latest step, saving at or below the latest returns False, and a failed
save leaves a manager that reports a step that does not exist and cannot save the next one.

Saving is asynchronous: ``save`` copies the arrays to the host and returns; the files are written while
training goes on. The next ``save``, ``wait`` or ``close`` waits for them and raises CheckpointError if they
could not be written. Only then are older checkpoints deleted: a save that fails costs none.

Of several processes each writes its own shards, so all must save, and see the same files; process 0 alone
makes, lists and deletes folders.

Replicated arrays are written by their first replica alone. Orbax's ``use_replica_parallel`` would share the
work among replicas, which gains nothing within one process and compiles a slice for each shape and device:
the first save of a 2 MB state blocked for 0.8 s instead of 0.02 (measured).
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import orbax.checkpoint as ocp

from jaxpipe.checkpoint.step_folders import complete_steps, remove_leftovers, remove_old, step_folder
from jaxpipe.checkpoint.template import check_arrays, check_template
from jaxpipe.errors import CheckpointError, InputError

ARRAYS = "arrays"
INFO = "info"


def open_checkpoints(directory: Path | str, *, keep: int) -> "Checkpoints":
    """The checkpoints of ``directory``, which is made if need be; the newest ``keep`` are kept."""
    if keep < 1:
        raise ValueError(f"keep={keep} must be at least 1: the newest checkpoint is never deleted")
    path = Path(directory).resolve()
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} must be the directory of the checkpoints, but it is a file; move it away")
    if _is_first():
        path.mkdir(parents=True, exist_ok=True)
    logging.getLogger("absl").addFilter(_is_not_raised_anyway)
    return Checkpoints(path, keep=keep)


class Checkpoints:
    """The checkpoints of one directory, and the save that may be in progress. One writer at a time.

    A context manager: leaving it waits for the last save.
    """

    def __init__(self, directory: Path, *, keep: int) -> None:
        self.directory = directory
        self.keep = keep
        self._saving: tuple[int, ocp.AsyncCheckpointer] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def latest(self) -> int | None:
        """The step of the newest complete checkpoint; one that is still being written does not count."""
        return max(complete_steps(self.directory), default=None)

    def save(self, step: int, arrays: Any, info: Mapping[str, Any]) -> None:
        """Save ``arrays`` and ``info`` as the checkpoint of ``step``.

        ``arrays`` may be donated as soon as this returns.

        Args:
            step: greater than that of any complete checkpoint.
            arrays: a pytree of jax Arrays, sharded as they are.
            info: a mapping that JSON gives back unchanged.

        Raises:
            ValueError: the step is not new, a leaf is no array, or JSON would change ``info``
                (TypeError if JSON has no form for it).
            CheckpointError: this checkpoint, or the one saved before it, could not be written.
        """
        self.wait()
        if _is_first():
            self._make_room(step)
        check_arrays(arrays)
        _check_info(info)
        checkpointer = ocp.AsyncCheckpointer(_handler())
        self._saving = step, checkpointer
        try:
            checkpointer.save(step_folder(self.directory, step), _save_args(arrays, info), force=True)
        except Exception as error:
            self._saving = None
            raise self._not_written(step, error) from error

    def wait(self) -> None:
        """Wait until the last save is complete, then delete the oldest checkpoints.

        Raises:
            CheckpointError: it could not be written; the checkpoints before it are as they were.
        """
        if self._saving is None:
            return
        step, checkpointer = self._saving
        self._saving = None
        try:
            checkpointer.close()
        except Exception as error:
            raise self._not_written(step, error) from error
        if _is_first():
            remove_old(self.directory, keep=self.keep)

    def close(self) -> None:
        """Wait for the last save; see ``wait``."""
        self.wait()

    def read_info(self, step: int) -> dict[str, Any]:
        """The ``info`` that was saved at ``step``; ValueError if there is no complete checkpoint of it."""
        wanted = ocp.args.Composite(**{INFO: ocp.args.JsonRestore()})
        with ocp.Checkpointer(_handler()) as checkpointer:
            return checkpointer.restore(self._complete(step), wanted)[INFO]

    def restore(self, step: int, like: Any) -> Any:
        """The arrays of ``step``, with the tree, shapes, dtypes and shardings of ``like``.

        Mesh and number of devices may differ from the writer's. The arrays can be donated.

        Args:
            step: that of a complete checkpoint.
            like: a pytree of ``jax.ShapeDtypeStruct`` with shardings.

        Raises:
            InputError: its leaves differ from those of ``like`` in name, shape or dtype.
            ValueError: no complete checkpoint of that step, or a leaf of ``like`` without sharding.
        """
        folder = self._complete(step)
        sharded = ocp.args.PyTreeRestore(like, ocp.checkpoint_utils.construct_restore_args(like))
        with ocp.Checkpointer(_handler()) as checkpointer:
            stored = checkpointer.metadata(folder).item_metadata[ARRAYS].tree
            check_template(stored, like, folder=folder)
            return _owned(checkpointer.restore(folder, ocp.args.Composite(**{ARRAYS: sharded}))[ARRAYS])

    def _make_room(self, step: int) -> None:
        latest = self.latest()
        if latest is not None and step <= latest:
            raise ValueError(
                f"checkpoints are saved in ascending order: step={step}, but {self.directory} holds "
                f"{latest}; resume from {latest} or use another directory"
            )
        remove_leftovers(self.directory)

    def _complete(self, step: int) -> Path:
        steps = complete_steps(self.directory)
        if step not in steps:
            raise ValueError(
                f"step={step} has no complete checkpoint in {self.directory}; "
                f"complete are {', '.join(map(str, steps)) or 'none'}"
            )
        return step_folder(self.directory, step)

    def _not_written(self, step: int, error: Exception) -> CheckpointError:
        folder, latest = step_folder(self.directory, step), self.latest()
        again = "start again" if latest is None else f"resume from step {latest}"
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        return CheckpointError(f"checkpoint {folder} could not be written: {cause}; free space, then {again}")


def _is_first() -> bool:
    """Whether this is the process that makes and deletes folders."""
    return jax.process_index() == 0


def _is_not_raised_anyway(record: logging.LogRecord) -> bool:
    """Orbax's threads log the traceback of each error that ``save`` or ``wait`` raises."""
    return record.levelno < logging.ERROR or "orbax" not in record.pathname


def _handler() -> ocp.CompositeCheckpointHandler:
    arrays = ocp.type_handlers.ArrayHandler(use_replica_parallel=False)
    registry = ocp.type_handlers.create_type_handler_registry((jax.Array, arrays))
    return ocp.CompositeCheckpointHandler(
        **{
            ARRAYS: ocp.PyTreeCheckpointHandler(use_zarr3=True, type_handler_registry=registry),
            INFO: ocp.JsonCheckpointHandler(),
        }
    )


def _save_args(arrays: Any, info: Mapping[str, Any]) -> ocp.args.Composite:
    return ocp.args.Composite(**{ARRAYS: ocp.args.PyTreeSave(arrays), INFO: ocp.args.JsonSave(dict(info))})


def _check_info(info: Mapping[str, Any]) -> None:
    returned = json.loads(json.dumps(dict(info), allow_nan=False))
    changed = [key for key in info if key not in returned or returned[key] != info[key]]
    if changed:
        raise ValueError(
            f"info must come back from JSON unchanged, which {', '.join(map(repr, changed))} does not; "
            "use texts as keys, lists for tuples and plain numbers"
        )


def _owned(arrays: Any) -> Any:
    """``arrays`` in buffers of JAX's own, so that donating them frees or reuses their memory.

    On CPU a restored array may be a view of the memory that TensorStore filled, which XLA may not write to.
    Leaf by leaf: never more than one is held twice.
    """
    leaves, structure = jax.tree.flatten(arrays)
    del arrays
    for index, leaf in enumerate(leaves):
        leaves[index] = jax.device_put(leaf, leaf.sharding, may_alias=False)
    return jax.tree.unflatten(structure, leaves)
