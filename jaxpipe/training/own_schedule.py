"""A schedule from a file becomes part of the run: the file may change or vanish, the run keeps its own.

So does a schedule that was searched for costs from a file. ``config.yaml`` names the copy in the run's
directory, so that resuming from it reads what was trained with.
"""

import dataclasses
from pathlib import Path

from jaxpipe.config import Config
from jaxpipe.schedules import Schedule, to_csv
from jaxpipe.schedules.schedule_file import is_file
from jaxpipe.training.atomic_write import write_text_atomically
from jaxpipe.training.run_directory import RunDirectory


def with_own_schedule(config: Config) -> Config:
    """The configuration with the copy's path instead of the file's; unchanged if there is no file."""
    is_searched = config.pipeline.costs is not None
    if not (_comes_from_file(config) or is_searched) or config.run.dir is None:
        return config
    pipeline = dataclasses.replace(config.pipeline, schedule=str(RunDirectory(Path(config.run.dir)).schedule))
    if is_searched:  # what guided the search has no meaning for a file
        pipeline = dataclasses.replace(pipeline, costs=None, num_chunks=None, memory_limit=None)
    return dataclasses.replace(config, pipeline=pipeline)


def write_own_schedule(config: Config, directory: RunDirectory, schedule: Schedule) -> bool:
    """Write the copy that ``config`` names, if it names one; whether that changed one that was there."""
    if not _comes_from_file(config):
        return False
    text = to_csv(schedule)
    before = directory.schedule.read_text(encoding="utf-8") if directory.schedule.exists() else text
    write_text_atomically(directory.schedule, text)
    return before != text


def _comes_from_file(config: Config) -> bool:
    return config.pipeline.schedule is not None and is_file(config.pipeline.schedule)
