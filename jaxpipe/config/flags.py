"""The command line: an optional YAML file, ``--section.key value`` flags, ``--dry-run`` and ``--help``.

``--a.b v`` and ``--a.b=v`` are the same, and so are dashes and underscores. A list takes all the words
up to the next flag; true or false may follow a switch, which alone means true.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType

from jaxpipe.config.assignments import Assignment, Fault, Items, Source, Text, Value, check_path
from jaxpipe.config.keys import keys, sections, suggest
from jaxpipe.config.values import is_list, options

_NEGATIVE_NUMBER = re.compile(r"-\.?[0-9].*")
_NULLS = ("none", "null")
_SWITCH_WORDS = ("true", "false", "yes", "no", "on", "off", "0", "1")
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
    assignments: dict[str, Assignment] = {}
    faults = []
    for flag in flags:
        if flag.name in ("help", "h", "dry_run"):
            files += flag.values
            continue
        taken, rest = _take(flag)
        files += rest
        result = _assign(flag, taken)
        if isinstance(result, Fault):
            faults.append(result)
        elif result.path in assignments:
            faults.append(Fault(f"{flag.word} is given twice; keep one", _WHERE))
        else:
            assignments[result.path] = result
    names = {flag.name for flag in flags}
    source = Source(tuple(assignments.values()), tuple(faults))
    return CommandLine(tuple(files), source, dry_run="dry_run" in names, help=bool(names & {"help", "h"}))


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
    key = keys().get(flag.name)
    if key is None and flag.name not in sections():
        return flag.values, ()
    if key is not None and any(is_list(option) for option in options(key.hint)):
        return flag.values, ()
    if key is not None and key.hint is bool and not flag.joined:
        count = bool(flag.values) and flag.values[0].lower() in _SWITCH_WORDS
        return flag.values[:count], flag.values[count:]
    return flag.values[:1], flag.values[1:]


def _assign(flag: _Flag, values: tuple[str, ...]) -> Assignment | Fault:
    key = keys().get(flag.name)
    section = sections().get(flag.name)
    if not flag.word.startswith("--") or (key is None and section is None):
        return Fault(f"{flag.word} is not a flag{suggest(flag.name)}", _WHERE)
    allowed = options(key.hint) if key is not None else (NoneType,)
    if key is not None and key.hint is bool and not values:
        values = ("true",)
    if not values:
        return Fault(f"{flag.word} needs a value", _WHERE)
    value: Value = Text(values[0])
    if len(values) == 1 and NoneType in allowed and values[0].lower() in _NULLS:
        value = None
    elif len(values) > 1 or (str not in allowed and any(is_list(option) for option in allowed)):
        value = Items(tuple(Text(word) for word in values))
    assignment = Assignment(flag.name, value, _WHERE)
    return check_path(assignment) or assignment
