"""The named schedules, what each asks of its sizes, and ``build``, which makes one.

Every single-pipe schedule works for any number of ranks and microbatches, m < p, m = 1 and p = 1 included.
"""

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from jaxpipe.schedules.generators.looped import interleaved, interleaved_zb, looped_bfs
from jaxpipe.schedules.generators.one_stage import gpipe, one_f_one_b, zb_h1, zb_h2
from jaxpipe.schedules.generators.two_pipes import (
    chimera,
    dualpipe,
    find_chimera_faults,
    find_dualpipe_faults,
)
from jaxpipe.schedules.generators.v_shaped import dualpipe_v, v_half, v_min, zb_v
from jaxpipe.schedules.schedule import Schedule

LARGEST = 65_536
"""Most forward actions in a schedule: it is a table in memory, drawn and simulated in pure Python."""


def _no_rule(num_ranks: int, num_microbatches: int, **options: int) -> Iterator[str]:
    yield from ()


@dataclass(frozen=True)
class Generator:
    """A named schedule.

    make: ``(num_ranks, num_microbatches, **keywords) -> Schedule``; of the keywords, ``num_chunks`` is passed
        where there is a choice, and the options that were given.
    num_chunks: the least and the most chunks that it takes, None for any number; the default is the least
        that makes it what it is.
    find_faults: what is wrong with ``(num_ranks, num_microbatches, **options)`` for this schedule alone.
    options: names of the options, with the least and the most that they may be.
    """

    make: Callable[..., Schedule]
    num_chunks: tuple[int, int | None] = (1, 1)
    default_chunks: int = 1
    find_faults: Callable[..., Iterator[str]] = _no_rule
    options: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first sentence of what ``make`` says of itself."""
        return (self.make.__doc__ or "").splitlines()[0]


GENERATORS: Mapping[str, Generator] = MappingProxyType(
    {
        "gpipe": Generator(gpipe, options={"reverse_backward": (0, 1)}),
        "1f1b": Generator(one_f_one_b),
        "interleaved": Generator(interleaved, num_chunks=(2, None), default_chunks=2),
        "looped_bfs": Generator(looped_bfs, num_chunks=(2, None), default_chunks=2),
        "zb_h1": Generator(zb_h1),
        "zb_h2": Generator(zb_h2),
        "interleaved_zb": Generator(interleaved_zb, num_chunks=(1, None), default_chunks=2),
        "zb_v": Generator(zb_v, num_chunks=(2, 2), default_chunks=2),
        "v_half": Generator(v_half, num_chunks=(2, 2), default_chunks=2),
        "v_min": Generator(v_min, num_chunks=(2, 2), default_chunks=2),
        "dualpipe_v": Generator(dualpipe_v, num_chunks=(2, 2), default_chunks=2),
        "dualpipe": Generator(dualpipe, find_faults=find_dualpipe_faults),
        "chimera": Generator(chimera, find_faults=find_chimera_faults, options={"num_pipes": (2, None)}),
    }
)
"""The schedules that follow a rule, by name."""


def auto(
    num_ranks: int, num_microbatches: int, *, num_chunks: int, memory_limit: int | None = None
) -> Schedule:
    """The best that a search finds with at most so many chunks (``find_schedule``, which takes costs too).

    F, B and W cost the same; no rank holds more than ``memory_limit`` activations of its whole share.
    """
    from jaxpipe.schedules.auto import Memory, find_schedule  # which compares with all of these

    memory = None if memory_limit is None else Memory(memory_limit)
    chunks = range(1, num_chunks + 1)
    return find_schedule(num_ranks, num_microbatches, memory=memory, chunks=chunks).schedule


MOST_SEARCHED = 8
"""Most chunks that a search tries: it goes through all numbers up to there."""

LARGEST_SEARCHED = 32_768
"""Most stages times microbatches, or stages times stages, in a search, which then takes a minute or so."""

SEARCHED: Mapping[str, Generator] = MappingProxyType(
    {
        "auto": Generator(
            auto, num_chunks=(1, MOST_SEARCHED), default_chunks=2, options={"memory_limit": (1, None)}
        )
    }
)
"""The schedules that are searched for, which takes seconds."""

NAMED: Mapping[str, Generator] = MappingProxyType({**GENERATORS, **SEARCHED})
"""The schedules that have a name, whether they follow a rule or are searched for: what ``build`` knows."""


def build(
    name: str,
    *,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int | None = None,
    **options: int,
) -> Schedule:
    """The schedule of that name; without ``num_chunks`` with as many as it needs.

    ``ValueError`` lists all that is wrong with the request.
    """
    faults = find_faults(
        name, num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, **options
    )
    if faults:
        raise ValueError("; ".join(faults))
    generator = NAMED[name]
    if generator.num_chunks[0] != generator.num_chunks[1]:
        options["num_chunks"] = generator.default_chunks if num_chunks is None else num_chunks
    return generator.make(num_ranks, num_microbatches, **options)


def find_faults(
    name: str,
    *,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int | None = None,
    **options: int,
) -> list[str]:
    """All that is wrong with a request to ``build``, each as rule, value and remedy."""
    sizes = {"num_ranks": num_ranks, "num_microbatches": num_microbatches}
    if num_chunks is not None:
        sizes["num_chunks"] = num_chunks
    too_small = [f"{size}={value} must be at least 1" for size, value in sizes.items() if value < 1]
    if name not in NAMED:
        close = difflib.get_close_matches(name.lower(), NAMED, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return [f"schedule {name!r} does not exist; {hint}there are {', '.join(NAMED)}", *too_small]
    generator = NAMED[name]
    faults = [*too_small, *_find_wrong_options(name, options)]
    if num_chunks is None:
        num_chunks = generator.default_chunks
    elif num_chunks >= 1:
        faults += _find_wrong_chunks(name, num_chunks)
    if not too_small:
        find = find_too_large_to_search if name in SEARCHED else find_too_large
        faults += find(num_ranks * num_chunks, num_microbatches)
    if not faults:
        faults += generator.find_faults(num_ranks, num_microbatches, **options)
    return faults


def default_schedule(num_ranks: int, num_chunks: int) -> str:
    """What to run when nothing is asked for, as Megatron-LM chooses: no pipelining, 1f1b, or interleaved.

    On one rank each of these runs one microbatch after the other, F and BW, which is no pipelining.
    """
    assert num_ranks >= 1, num_ranks
    return "1f1b" if num_chunks == 1 else "interleaved"


def _find_wrong_options(name: str, options: Mapping[str, int]) -> Iterator[str]:
    known = NAMED[name].options
    for option, value in options.items():
        if option not in known:
            there_are = f"it has {', '.join(known)}" if known else "it has none"
            yield f"option {option!r} does not exist for {name}, {there_are}; leave it out"
            continue
        least, most = known[option]
        if value < least or (most is not None and value > most):
            limits = f"{least} or more" if most is None else f"between {least} and {most}"
            yield f"{option}={value} must be {limits} for {name}"


def _find_wrong_chunks(name: str, num_chunks: int) -> Iterator[str]:
    least, most = NAMED[name].num_chunks
    if num_chunks < least or (most is not None and num_chunks > most):
        rule = f"{least}" if least == most else f"at least {least}"
        if most is not None and most > least:
            rule += f" and at most {most}"
        instead = {"interleaved": "1f1b", "looped_bfs": "gpipe"}.get(name)
        remedy = f"use {least}, or the schedule {instead}" if instead else "leave it out"
        yield f"num_chunks={num_chunks} must be {rule} for {name}; {remedy}"


def find_too_large(num_stages: int, num_microbatches: int) -> Iterator[str]:
    """Sizes of which there would be more than ``LARGEST`` forward actions."""
    total = num_stages * num_microbatches
    if total > LARGEST:
        most = LARGEST // num_stages
        yield (
            f"num_ranks x num_chunks x num_microbatches={num_stages} x {num_microbatches} = {total} must be "
            f"at most {LARGEST}; use {f'at most {most} microbatches' if most else 'fewer of each'}"
        )


def find_too_large_to_search(num_stages: int, num_microbatches: int) -> Iterator[str]:
    """Sizes for which a search would take minutes."""
    if num_stages**2 > LARGEST_SEARCHED:
        most = math.isqrt(LARGEST_SEARCHED)
        yield (
            f"num_ranks x num_chunks={num_stages} must be at most {most} for auto; use fewer chunks, or a "
            "schedule by name"
        )
    elif num_stages * num_microbatches > LARGEST_SEARCHED:
        yield (
            f"num_ranks x num_chunks x num_microbatches={num_stages} x {num_microbatches} = "
            f"{num_stages * num_microbatches} must be at most {LARGEST_SEARCHED} for auto; use at most "
            f"{LARGEST_SEARCHED // num_stages} microbatches, fewer chunks, or a schedule by name"
        )
