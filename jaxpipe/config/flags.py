"""The command line: an optional YAML file, ``--section.key value`` flags, ``--dry-run`` and ``--help``.

``--a.b v`` and ``--a.b=v`` are the same, and so are dashes and underscores. A list takes all the words
up to the next flag; true or false may follow a switch, which alone means true. The YAML file stands before
the flags; behind one that has its value it is known by its ending.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

from jaxpipe.config.assignments import Assignment, Fault, Items, Source, Text, Value, check_path, related
from jaxpipe.config.keys import keys, sections, suggest
from jaxpipe.config.values import convert, is_list, options

_NEGATIVE_NUMBER = re.compile(r"-\.?[0-9].*")
_NULLS = ("none", "null")
_YAML_ENDINGS = (".yaml", ".yml")
_OTHER_FLAGS = ("dry-run", "help")
_DRY_RUN = "dry_run"
_WHERE = "command line"


@dataclass(frozen=True)
class CommandLine:
    """The words of the command line, sorted."""

    files: tuple[str, ...]
    source: Source
    dry_run: bool
    help: bool


@dataclass(frozen=True)
class _Flag:
    """A flag as written, and the words after it up to the next one; ``joined`` if the first came after =."""

    word: str
    values: tuple[str, ...]
    joined: bool

    @property
    def name(self) -> str:
        return self.word.lstrip("-").replace("-", "_")


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Sort ``argv`` (without the program's name); unknown flags and missing values become faults."""
    files, flags = _split(argv)
    given: dict[str, _Flag] = {}
    values: dict[str, Assignment] = {}
    faults: list[Fault] = []
    for flag in flags:
        if flag.name in ("help", "h"):
            files += flag.values
            continue
        taken, rest = _take(flag)
        files += [word for word in rest if word.endswith(_YAML_ENDINGS)]
        faults += [
            Fault(f"{flag.word} takes one value; there is no place for {word!r}", _WHERE)
            for word in rest
            if not word.endswith(_YAML_ENDINGS)
        ]
        result = _assign(flag, taken)
        rival = next((other for path, other in given.items() if related(path, flag.name)), None)
        if isinstance(result, Fault):
            faults.append(result)
        elif rival is None:
            given[flag.name], values[flag.name] = flag, result
        elif rival.name == flag.name:
            faults.append(Fault(f"{flag.word} is given twice; keep one", _WHERE))
        else:
            faults.append(Fault(f"{flag.word} contradicts {rival.word}; keep one", _WHERE))
    dry_run, fault = _read_switch(values.pop(_DRY_RUN, None))
    return CommandLine(
        tuple(files),
        Source(tuple(values.values()), tuple(faults) + ((fault,) if fault else ())),
        dry_run=dry_run,
        help=any(flag.name in ("help", "h") for flag in flags),
    )


def _read_switch(assignment: Assignment | None) -> tuple[bool, Fault | None]:
    """Whether ``--dry-run`` is on; it is no key of the configuration, but reads like one."""
    if assignment is None:
        return False, None
    try:
        return convert(assignment.value, bool), None
    except ValueError as error:
        return False, Fault(f"--dry-run {error}", _WHERE)


def _split(argv: Sequence[str]) -> tuple[list[str], list[_Flag]]:
    """The words before the first flag, and the flags with the words after them."""
    files: list[str] = []
    flags: list[_Flag] = []
    for word in argv:
        if word.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(word):
            name, equals, value = word.partition("=")
            flags.append(_Flag(name, (value,) if equals else (), bool(equals)))
        elif flags:
            last = flags[-1]
            flags[-1] = _Flag(last.word, (*last.values, word), last.joined)
        else:
            files.append(word)
    return files, flags


def _take(flag: _Flag) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words that are the flag's values, and those that are not."""
    hint = _hint(flag.name)
    if hint is None or any(is_list(option) for option in options(hint)):
        return flag.values, ()
    if hint is bool and not flag.joined and flag.values and flag.values[0].endswith(_YAML_ENDINGS):
        return (), flag.values
    return flag.values[:1], flag.values[1:]


def _hint(name: str) -> Any:
    """The type of the flag's value, or None if there is no such flag; a section can only be null."""
    if name == _DRY_RUN:
        return bool
    if name in sections():
        return NoneType
    return keys()[name].hint if name in keys() else None


def _assign(flag: _Flag, values: tuple[str, ...]) -> Assignment | Fault:
    hint = _hint(flag.name)
    if not flag.word.startswith("--") or hint is None:
        return Fault(f"{flag.word} is not a flag{suggest(flag.name, flags=_OTHER_FLAGS)}", _WHERE)
    allowed = options(hint)
    if hint is bool and not values:
        values = ("true",)
    if not values:
        return Fault(f"{flag.word} needs a value", _WHERE)
    value: Value = Text(values[0])
    if len(values) == 1 and NoneType in allowed and values[0].lower() in _NULLS:
        value = None
    elif len(values) > 1 or (str not in allowed and any(is_list(option) for option in allowed)):
        value = Items(tuple(Text(word) for word in values))
    assignment = Assignment(flag.name, value, _WHERE)
    return (None if flag.name == _DRY_RUN else check_path(assignment)) or assignment
