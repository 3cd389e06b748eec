"""Where the records of a run go: to ``metrics.jsonl`` always, to TensorBoard and Weights & Biases when asked.

All get the same records. The file is first: the others are made whole from it when a run is resumed.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TextIO

import yaml

from jaxpipe.config import Config, to_yaml
from jaxpipe.curves.event_file import EventFile, add_record, open_event_file
from jaxpipe.curves.records import read_records
from jaxpipe.curves.wandb_process import WandbProcess, find_fault, open_wandb
from jaxpipe.training.metrics import open_metrics, write_metrics
from jaxpipe.training.run_directory import RunDirectory
from jaxpipe.training.stopping.leaving import tell
from jaxpipe.training.storage import storing


class Curves(NamedTuple):
    """What is open for writing; None is not asked for."""

    file: TextIO
    event_file: EventFile | None = None
    wandb: WandbProcess | None = None


@contextmanager
def open_curves(
    config: Config,
    directory: RunDirectory,
    *,
    is_stopped: Callable[[], bool],
    resume_step: int | None = None,
    is_evaluated: bool = True,
) -> Iterator[Curves]:
    """Begin the curves, or go on with those up to ``resume_step``; see ``open_metrics``.

    is_stopped: asked at the end, see ``open_wandb``.

    Raises:
        StorageError: something cannot be written.
    """
    with ExitStack() as stack:
        file = stack.enter_context(
            open_metrics(directory.metrics, resume_step=resume_step, is_evaluated=is_evaluated)
        )
        event_file = wandb = None
        if config.run.tensorboard:
            event_file = stack.enter_context(_event_file(directory))
        if config.run.wandb is not None:
            wandb = stack.enter_context(_wandb(config, directory, config.run.wandb, is_stopped))
        yield Curves(file, event_file, wandb)


@contextmanager
def no_curves() -> Iterator[Curves]:
    """Those of a process that writes nothing."""
    with open(os.devnull, "w", encoding="utf-8") as file:
        yield Curves(file)


def write_record(curves: Curves, record: Mapping[str, Any]) -> None:
    """Append ``record``, which has a ``step``, everywhere.

    Raises:
        StorageError: it cannot be written.
    """
    write_metrics(curves.file, record)
    if curves.event_file is not None:
        with storing(curves.event_file.path):
            add_record(curves.event_file, record)
    if curves.wandb is not None:
        _tell(find_fault(curves.wandb))


@contextmanager
def _event_file(directory: RunDirectory) -> Iterator[EventFile]:
    folder = directory.path / "tensorboard"
    with ExitStack() as stack:
        with storing(folder):
            records = read_records(directory.metrics)
            file = stack.enter_context(open_event_file(folder, records))
        yield file
        with storing(folder):
            stack.close()


@contextmanager
def _wandb(
    config: Config, directory: RunDirectory, project: str, is_stopped: Callable[[], bool]
) -> Iterator[WandbProcess]:
    values = yaml.safe_load(to_yaml(config))
    with ExitStack() as stack:
        with storing(directory.path / "wandb"):
            sender = stack.enter_context(
                open_wandb(directory.metrics, project=project, config=values, is_stopped=is_stopped)
            )
        try:
            yield sender
        finally:
            stack.close()
            _tell(find_fault(sender, is_over=True))


def _tell(fault: str | None) -> None:
    if fault is not None:
        tell(fault)
