"""Which schedule a request means, and how large: by name and sizes, or from a CSV file."""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from jaxpipe.schedules import Schedule, build, find_faults
from jaxpipe.schedules.generators.catalog import NAMED
from jaxpipe.schedules.schedule_file import is_file, read_schedule_file

Number = TypeVar("Number", int, float)

_GIVEN_OTHERWISE = {
    "name": "the name of the schedule",
    "num_ranks": "--ranks",
    "num_microbatches": "--microbatches",
    "num_chunks": "--chunks",
}


_UNREAD = sys.maxsize


@dataclass(frozen=True)
class Sizes:
    """What was given, None for what was not; ``options`` are those of generators."""

    num_ranks: int | None
    num_microbatches: int | None
    num_chunks: int | None
    options: Mapping[str, int]


def add_size_arguments(
    parser: argparse.ArgumentParser, *, with_chunks: bool = True, with_options: bool = True
) -> None:
    """Ranks, microbatches, chunks and options."""
    parser.add_argument("--ranks", metavar="P", help="number of ranks")
    parser.add_argument("--microbatches", metavar="M", help="number of microbatches in a step")
    if with_chunks:
        parser.add_argument("--chunks", metavar="V", help="stages per rank (default: as many as it needs)")
    if not with_options:
        return
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="of a schedule that has some, such as reverse_backward=true (see jaxpipe schedule list)",
    )


def help_on_schedule() -> str:
    """What may stand for a schedule."""
    return f"one of {', '.join(NAMED)}; or a file that ends in .csv, which needs no sizes"


def read_sizes(arguments: argparse.Namespace, faults: list[str]) -> Sizes:
    """What cannot be read becomes a size that nearly all schedules take, and a fault more."""

    def read(option: str, text: str | None, fallback: int) -> int | None:
        if text is None:
            return None
        return read_number(text, int, option=option, faults=faults, fallback=fallback)

    chunks = read("--chunks", getattr(arguments, "chunks", None), fallback=_UNREAD)
    return Sizes(
        read("--ranks", arguments.ranks, fallback=2),
        read("--microbatches", arguments.microbatches, fallback=4),
        None if chunks == _UNREAD else chunks,
        _read_options(getattr(arguments, "option", []), faults),
    )


def read_number(
    text: str, read: Callable[[str], Number], *, option: str, faults: list[str], fallback: Number
) -> Number:
    """The number, or ``fallback`` and one fault more; of what Python reads, not 1_000 nor foreign digits."""
    try:
        if not text.isascii() or "_" in text:
            raise ValueError(text)
        return read(text)
    except ValueError:
        faults.append(f"{option} {text!r} must be {'a whole' if read is int else 'a'} number")
        return fallback


def read_schedule(text: str, sizes: Sizes, faults: list[str]) -> Schedule | None:
    """The schedule, or None and what is wrong."""
    if is_file(text):
        return _read_file(text, sizes, faults)
    given = {"--ranks": sizes.num_ranks, "--microbatches": sizes.num_microbatches}
    found = [f"{option} is missing; give a number" for option, number in given.items() if number is None]
    num_ranks, num_microbatches = (1 if number is None else number for number in given.values())
    known = {"num_ranks": num_ranks, "num_microbatches": num_microbatches, **sizes.options}
    found += find_faults(text, num_chunks=sizes.num_chunks, **known)
    faults += found
    return None if found else build(text, num_chunks=sizes.num_chunks, **known)


def _read_file(text: str, sizes: Sizes, faults: list[str]) -> Schedule | None:
    try:
        schedule = read_schedule_file(text)
    except ValueError as error:
        faults.append(str(error))
        return None
    found = [*_find_other_sizes(text, sizes, schedule)]
    faults += found
    return None if found else schedule


def _find_other_sizes(text: str, sizes: Sizes, schedule: Schedule) -> list[str]:
    """Sizes that were given, but are not those of the file."""
    has = {
        "--ranks": (sizes.num_ranks, schedule.num_ranks),
        "--microbatches": (sizes.num_microbatches, schedule.num_microbatches),
        "--chunks": (sizes.num_chunks, schedule.placement.num_chunks),
    }
    found = [
        f"{option} {given} must be the {held} of {text!r}; leave it out"
        for option, (given, held) in has.items()
        if given not in (None, held)
    ]
    if sizes.options:
        found.append(f"--option is for schedules by name, but {text!r} is a file; leave it out")
    return found


def _read_options(texts: list[str], faults: list[str]) -> dict[str, int]:
    options: dict[str, int] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name in _GIVEN_OTHERWISE:
            faults.append(
                f"--option {text!r} must name an option; {name} is given by {_GIVEN_OTHERWISE[name]}"
            )
        elif not name.isidentifier() or not value:
            faults.append(f"--option {text!r} must be a name and a value, such as reverse_backward=true")
        elif name in options:
            faults.append(f"--option {name} is given twice; keep one")
        else:
            whole = {"true": "1", "false": "0"}.get(value.lower(), value)
            if whole.isascii() and whole.lstrip("-").isdigit():
                options[name] = int(whole)
            else:
                faults.append(f"--option {name} {value!r} must be a whole number, true or false")
    return options
