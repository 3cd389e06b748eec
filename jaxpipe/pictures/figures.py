"""The numbers beside a picture, as texts: of one schedule, of each of its ranks, and of several schedules."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jaxpipe.pictures.timed import Timed
from jaxpipe.schedules import Cause


class Table(NamedTuple):
    """The first column names a row, all others are numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def figures(timed: Timed) -> list[tuple[str, str]]:
    """Name and value of what is said about a schedule as a whole."""
    simulation = timed.simulation
    return [
        ("makespan", f"{simulation.makespan:g}"),
        ("ideal", f"{simulation.ideal:g}"),
        ("bubble", f"{simulation.bubble:g}"),
        ("bubble of the makespan", f"{simulation.bubble_fraction:.1%}"),
        ("longest rank span", f"{simulation.longest_rank_span:g}"),
        ("peak held until B", f"{timed.peak_until_backward:g}"),
        ("peak held until W", f"{timed.peak_until_weight:g}"),
        ("copies of the weights", f"{timed.schedule.placement.num_pipes}"),
    ]


def rank_table(timed: Timed) -> Table:
    """Of each rank the work, the idle time by cause, and the most that it holds; only causes that occur."""
    simulation = timed.simulation
    spent: Counter[tuple[int, Cause]] = Counter()
    for idle in simulation.idle:
        spent[idle.rank, idle.cause] += idle.end - idle.start  # type: ignore[assignment]
    causes = [cause for cause in Cause if any(found is cause for _, found in spent)]
    rows = []
    for rank, work in enumerate(simulation.work):
        peaks = simulation.peak_until_backward[rank], simulation.peak_until_weight[rank]
        held = (peak / timed.stages_per_unit for peak in peaks)
        values = (work, *(spent[rank, cause] for cause in causes), *held)
        rows.append((f"rank {rank}", *(f"{value:.4g}" for value in values)))
    return Table(("", "work", *causes, "held to B", "held to W"), tuple(rows))


def comparison_table(compared: Sequence[Timed]) -> Table:
    """A row for each schedule."""
    rows = []
    for timed in compared:
        simulation, placement = timed.simulation, timed.schedule.placement
        rows.append(
            (
                timed.title,
                f"{placement.num_chunks}",
                f"{simulation.makespan:g}",
                f"{simulation.bubble_fraction:.1%}",
                f"{simulation.longest_rank_span:g}",
                f"{timed.peak_until_backward:g}",
                f"{timed.peak_until_weight:g}",
                f"{placement.num_pipes}",
            )
        )
    header = ("schedule", "chunks", "makespan", "bubble", "rank span", "held to B", "held to W", "weights")
    return Table(header, tuple(rows))


def heading(compared: Sequence[Timed]) -> str:
    """Schedules and sizes, in a line."""
    names = ", ".join(timed.title for timed in compared)
    sizes = {
        f"{count(timed.schedule.num_ranks, 'rank')}, {count(timed.schedule.num_microbatches, 'microbatch')}"
        for timed in compared
    }
    return f"{names}: {' and '.join(sorted(sizes))}"


def count(number: int, thing: str) -> str:
    """``2 ranks``."""
    plural = "es" if thing.endswith("ch") else "s"
    return f"{number} {thing}{'' if number == 1 else plural}"
