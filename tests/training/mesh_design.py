"""Which meshes, schedules and memory options are tried together: every pair of choices appears.

All meshes of 1, 2, 4 and 8 devices, times all schedules that run on them, and of the other choices, for each,
what covers most pairs that are still missing.
"""

from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

from jaxpipe.schedules import find_faults

NUM_MICROBATCHES = 16
"""As many as dualpipe and dualpipe_v want on eight ranks; interleaved wants a multiple of the ranks."""

SCHEDULES = ("1f1b", "zb_h1", "interleaved", "zb_v", "dualpipe_v", "dualpipe")
REMATS = ("none", "selective", "full")


class Choice(NamedTuple):
    """One run; the fields from ``zero`` on are what is spread over meshes and schedules."""

    mesh: tuple[int, int, int]
    schedule: str
    zero: int
    remat: str
    sequence_parallel: bool
    tied: bool
    num_layers: int
    transfer_ticks: int
    fuse_backward: bool

    def __str__(self) -> str:
        dp, pp, tp = self.mesh
        words = [f"dp{dp}-pp{pp}-tp{tp}", self.schedule, f"zero{self.zero}", self.remat]
        words += ["sp"] * self.sequence_parallel + ["tied"] * self.tied + [f"layers{self.num_layers}"]
        return "-".join([*words, f"ticks{self.transfer_ticks}", *["fused"] * self.fuse_backward])


MESHES = tuple(
    mesh
    for size in (1, 2, 4, 8)
    for mesh in product((1, 2, 4, 8), repeat=3)
    if mesh[0] * mesh[1] * mesh[2] == size
)

OTHERS = tuple(product((0, 1, 2, 3), REMATS, (False, True), (False, True), (16, 17), (1, 2), (False, True)))
"""16 layers are even over all stages here, 17 over none but one."""


def choices() -> list[Choice]:
    """A covering design, the same every time."""
    missing = set(pairs())
    chosen = []
    for index, (mesh, schedule) in enumerate(places()):
        best = max(_options(mesh, schedule, start=index), key=lambda choice: len(missing & pairs_of(choice)))
        chosen.append(best)
        missing -= pairs_of(best)
    while missing:
        first, second = min(missing, key=str)
        best = max(
            (
                option
                for mesh, schedule in places()
                for option in _options(mesh, schedule, start=0)
                if option[first[0]] == first[1] and option[second[0]] == second[1]
            ),
            key=lambda choice: len(missing & pairs_of(choice)),
        )
        chosen.append(best)
        missing -= pairs_of(best)
    return chosen


def places() -> list[tuple[tuple[int, int, int], str]]:
    """Each mesh with each schedule that runs on as many ranks."""
    return [
        (mesh, schedule)
        for mesh in MESHES
        for schedule in SCHEDULES
        if not any(find_faults(schedule, num_ranks=mesh[1], num_microbatches=NUM_MICROBATCHES))
    ]


def pairs() -> set[tuple]:
    """Every pair of choices that some run can have."""
    found: set[tuple] = set()
    for mesh, schedule in places():
        for option in _options(mesh, schedule, start=0):
            found |= pairs_of(option)
    return found


def pairs_of(choice: Choice) -> set[tuple]:
    return set(combinations(enumerate(choice), 2))


def _options(mesh: tuple[int, int, int], schedule: str, *, start: int) -> Iterator[Choice]:
    """All runs there, from another one on each time: the first of equals is taken."""
    for others in (*OTHERS[start % len(OTHERS) :], *OTHERS[: start % len(OTHERS)]):
        choice = Choice(mesh, schedule, *others)
        if not choice.sequence_parallel or mesh[2] > 1:
            yield choice
