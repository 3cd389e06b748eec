"""From ``argv`` to a configuration that is known to be right, or to all that is wrong with it.

    YAML file ----+
    environment --+--> assignments --> values by type --> ranges and rules --> Config
    flags --------+

Nothing here loads JAX: a mistake is told at once.
"""

import dataclasses
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jaxpipe.config.assignments import Fault, Source, overlay
from jaxpipe.config.environment import or_unset, read_environment
from jaxpipe.config.flags import CommandLine, read_command_line
from jaxpipe.config.help_page import print_help
from jaxpipe.config.keys import assemble, keys, sections
from jaxpipe.config.process_rules import has_several_processes
from jaxpipe.config.rules import value_faults
from jaxpipe.config.run_directory_rule import RUN_FILES, run_directory_fault
from jaxpipe.config.sections import Config
from jaxpipe.config.values import convert, describe
from jaxpipe.config.xla_flags import VARIABLE, check_determinism
from jaxpipe.config.yaml_file import read_yaml, read_yaml_file
from jaxpipe.errors import InputError

DEFAULT_FILE = Path(__file__).parents[2] / "configs" / "tiny.yaml"


@dataclass(frozen=True)
class Command:
    """What the command line asks for."""

    config: Config
    dry_run: bool


def parse(argv: Sequence[str]) -> Command:
    """The command that ``argv`` (without the program's name) asks for.

    Ends the process with 2, and all faults on standard error, if anything is wrong; with 0 after
    ``--help``, which heeds the YAML file alone.
    """
    line = read_command_line(argv)
    file = line.files[0] if line.files else os.path.relpath(DEFAULT_FILE)
    if line.help:
        values, found = _read(read_yaml_file(file))
        _exit_if(found)
        print_help(assemble(values), file=file)
        sys.exit(0)
    source = overlay([read_yaml_file(file), read_environment(os.environ), line.source])
    values, found = run_values(source, line, file=file)
    _exit_if(found)
    return Command(assemble(values), line.dry_run)


def parse_without_run(argv: Sequence[str]) -> tuple[Config | None, list[Fault]]:
    """The configuration that ``argv`` asks for, or None and all that is wrong with it.

    For those who start no run: whether ``run.dir`` is taken is not asked, and the environment's processes are
    none of theirs. ``--help`` ends the process.
    """
    line = read_command_line(argv)
    if line.help:
        parse([*line.files[:1], "--help"])
    file = line.files[0] if line.files else os.path.relpath(DEFAULT_FILE)
    values, found = _read(
        overlay([read_yaml_file(file), line.source]), xla_flags=os.environ.get(VARIABLE, "")
    )
    found += _surplus_faults(line)
    if line.dry_run:
        found.append(Fault("--dry-run is for train.py; leave it out", "command line"))
    return (None, found) if found else (assemble(values), [])


def run_values(
    source: Source, line: CommandLine, *, file: str, may_resume: bool = True
) -> tuple[dict[str, Any], list[Fault]]:
    """The values of all keys, with the run's directory chosen; and all that is wrong.

    ``source`` is all that was said: in ``file``, in the environment, on the command ``line``. ``may_resume``
    is whether whoever asks for a new run could ask for the old one instead.
    """
    values, found = _read(source, xla_flags=os.environ.get(VARIABLE, ""))
    found += _surplus_faults(line)
    run_directory, fault = _choose_run_directory(values, file=file, may_resume=may_resume)
    if message := _moved_run_fault(values, file=file, flags=line.source):
        fault = Fault(message, file)
    if fault and not line.dry_run:
        found.append(fault)
    return values | {"run.dir": run_directory}, found


def from_yaml(text: str, *, name: str = "configuration") -> Config:
    """The configuration that ``to_yaml`` wrote; ``InputError`` tells all that is wrong with it.

    What lies on disk is checked too, but not whether ``run.dir`` is taken, nor the environment.
    """
    values, found = _read(read_yaml(text, name=name))
    if found:
        raise InputError("; ".join(map(str, found)))
    return assemble(values)


def from_saved(text: str, *, name: str) -> Config:
    """The configuration that a checkpoint holds, for those who want its model and not to run it.

    Keys that it does not have are newer than it, and have their defaults. Whether what it names is still
    there (text, schedule), and whether its values fit together, is not asked: once they did. ``InputError``
    if it cannot be read.
    """
    values, found = _convert(read_yaml(text, name=name))
    if found:
        raise InputError("; ".join(map(str, found)))
    return assemble(values)


def _read(source: Source, *, xla_flags: str = "") -> tuple[dict[str, Any], list[Fault]]:
    """The values of all keys, and what is wrong with the source, the values and their company."""
    given = {assignment.path: assignment for assignment in source.assignments}
    values, found = _convert(source)
    against = check_determinism(values.get("run.deterministic", False), xla_flags)
    for path, message in [*value_faults(values), *(("run.deterministic", fault) for fault in against)]:
        if path.startswith("distributed."):
            message += or_unset(given.values())
        found.append(Fault(message, given[path].where if path in given else ""))
    return values, found


def _convert(source: Source) -> tuple[dict[str, Any], list[Fault]]:
    """The values of all keys by their types, and what is wrong with the source or has another type."""
    given = {assignment.path: assignment for assignment in source.assignments}
    values: dict[str, Any] = {}
    found = list(source.faults)
    for path, key in keys().items():
        if path in given:
            try:
                values[path] = convert(given[path].value, key.hint)
            except ValueError as error:
                found.append(Fault(f"{path} {error}", given[path].where))
        elif key.default is not dataclasses.MISSING:
            values[path] = key.default
        elif source.complete:
            found.append(Fault(f"{path} is missing; give it {describe(key.hint)}"))
    return {path: value for path, value in values.items() if not _section_is_null(path, given)}, found


def _section_is_null(path: str, given: Collection[str]) -> bool:
    """Whether the key lies in an optional section of which no key was given."""
    section = sections()[path.rpartition(".")[0]]
    return section.optional and not any(other.startswith(section.path + ".") for other in given)


def _surplus_faults(line: CommandLine) -> list[Fault]:
    """There is one YAML file."""
    return [
        Fault(f"there is no place for {word!r}; give one YAML file, before the flags", "command line")
        for word in line.files[1:]
    ]


def _choose_run_directory(values: dict[str, Any], *, file: str, may_resume: bool) -> tuple[str, Fault | None]:
    """The run's directory, named after the YAML file and the time if nobody named it, and its fault."""
    resume = values.get("checkpoint.resume", False)
    directory = values.get("run.dir")
    if directory is None and has_several_processes(values):
        return "", Fault("run.dir must be given for several processes, as its default holds the time")
    if directory is None:
        directory = f"runs/{Path(file).stem}-{datetime.now():%Y%m%d-%H%M%S}"
        if resume:
            return directory, Fault("checkpoint.resume needs the directory of a run; give run.dir")
    if has_several_processes(values):  # they start one after the other: process 0 looks, when all are there
        return directory, None
    message = run_directory_fault(directory, resume=resume, may_resume=may_resume)
    return directory, Fault(message) if message else None


def _moved_run_fault(values: dict[str, Any], *, file: str, flags: Source) -> str:
    """A run that was moved or copied still has the old place in its config.yaml: which one is meant?"""
    here, there = Path(file).resolve().parent, values.get("run.dir")
    is_of_a_run = Path(file).name == RUN_FILES[0] and (here / RUN_FILES[1]).exists()
    is_given = any(assignment.path == "run.dir" for assignment in flags.assignments)
    resumes = values.get("checkpoint.resume") and there is not None
    if not (resumes and is_of_a_run) or is_given or Path(there or "").resolve() == here:
        return ""
    return (
        f"run.dir={there} is not where this configuration of a run lies now; give --run.dir {here} to resume "
        f"the run here, or --run.dir {there} for the one there"
    )


def _exit_if(faults: Sequence[Fault]) -> None:
    """Tell all faults and end with 2, or return if there are none."""
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        lines = [f"train.py: {count} in the configuration", *(f"  {fault}" for fault in faults)]
        print("\n".join(lines), file=sys.stderr)
        sys.exit(2)
