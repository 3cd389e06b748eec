"""A configuration whose model comes from elsewhere, such as the config.json of trained weights.

YAML file and flags say the rest, as for any run. What they say of the model must be what it is; the default
file, which nobody has named, gives all but its model.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from jaxpipe.config.assignments import Assignment, Fault, Source, Text, overlay
from jaxpipe.config.command import DEFAULT_FILE, Command, parse, run_values
from jaxpipe.config.environment import read_environment
from jaxpipe.config.flags import read_command_line
from jaxpipe.config.keys import assemble, keys
from jaxpipe.config.values import convert
from jaxpipe.config.yaml_file import read_yaml_file
from jaxpipe.models.llama_config import LlamaConfig

_PREFIX = "model."
_SCALING = "model.rope_scaling"
_RUN_DIRECTORY = "run.dir"
_RESUME = "checkpoint.resume"


def parse_for_model(
    argv: Sequence[str],
    model: LlamaConfig,
    *,
    origin: str,
    run_directory: str,
    tokenizer: str | None = None,
) -> tuple[Command | None, list[Fault]]:
    """The command of a new run of ``model`` in ``run_directory``, or None and all that is wrong.

    Args:
        argv: an optional YAML file and flags, as ``parse`` takes them. ``--help`` ends the process.
        origin: whence the model comes, for messages.
        tokenizer: the file of its tokenizer, which is the run's unless file or flags say something else.
    """
    line = read_command_line(argv)
    if line.help:
        parse([*line.files[:1], "--help"])
    file = line.files[0] if line.files else os.path.relpath(DEFAULT_FILE)
    in_file = read_yaml_file(file)
    if not line.files:
        rest = tuple(item for item in in_file.assignments if not _is_of_model(item.path))
        in_file = replace(in_file, assignments=rest)
    given = [
        *_model_assignments(model, origin),
        Assignment(_RUN_DIRECTORY, Text(run_directory), ""),
        Assignment(_RESUME, Text("false"), ""),
    ]
    said = overlay([in_file, line.source])
    by_itself = () if tokenizer is None else (Assignment("data.tokenizer", Text(tokenizer), origin),)
    sources = [Source(by_itself), in_file, read_environment(os.environ), line.source, Source(tuple(given))]
    values, found = run_values(overlay(sources), line, file=file, may_resume=False)
    found += _contradictions(said, model, origin)
    if any(flag.path == _RUN_DIRECTORY for flag in line.source.assignments):
        found.append(
            Fault(f"the run's directory is {run_directory!r} already; leave run.dir out", "command line")
        )
    for assignment in said.assignments:
        value = assignment.value
        if assignment.path == _RESUME and not (isinstance(value, Text) and value.text.lower() == "false"):
            words = f"{_RESUME} goes on with a run, but this is to start one; leave it out"
            found.append(Fault(words, assignment.where))
    return (None, found) if found else (Command(assemble(values), line.dry_run), [])


def _model_assignments(model: LlamaConfig, origin: str) -> Iterator[Assignment]:
    """What would have to be written of the model, key by key."""
    if model.rope_scaling is None:
        yield Assignment(_SCALING, None, origin)
    for path in filter(_is_of_model, keys()):
        if _is_absent(path, model):
            continue
        value = _value(model, path)
        yield Assignment(path, None if value is None else Text(str(value)), origin)


def _contradictions(said: Source, model: LlamaConfig, origin: str) -> Iterator[Fault]:
    """Where a source says something else of the model; null means what it stands for."""
    for assignment in said.assignments:
        path = assignment.path
        if path == _SCALING and model.rope_scaling is not None:
            yield Fault(f"{path} is null here, but {origin} has a scaling; leave it out", assignment.where)
        if path not in keys() or not _is_of_model(path):
            continue
        try:
            wanted = convert(assignment.value, keys()[path].hint)
        except ValueError as error:
            yield Fault(f"{path} {error}", assignment.where)
            continue
        found = None if _is_absent(path, model) else _value(model, path)
        if path == "model.head_dim" and wanted is None:
            wanted, found = replace(model, head_dim=None).head_size, model.head_size
        if path == "model.num_key_value_heads" and wanted is None:
            wanted, found = model.num_attention_heads, model.kv_heads
        if wanted != found:
            yield Fault(f"{path}={wanted} must be {found}, as in {origin}; leave it out", assignment.where)


def _is_of_model(path: str) -> bool:
    return path.startswith(_PREFIX)


def _is_absent(path: str, model: LlamaConfig) -> bool:
    return path.startswith(_SCALING + ".") and model.rope_scaling is None


def _value(model: LlamaConfig, path: str) -> Any:
    value: Any = model
    for name in path.split(".")[1:]:
        value = getattr(value, name)
    return value
