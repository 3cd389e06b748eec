"""Segments are the table again, row for row, with no more than each row uses; and they do not grow with m."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.lowering import TickTable, lower, replay
from jaxpipe.lowering.segments import Segment, specialised, whole
from jaxpipe.lowering.table import BACKWARD_WEIGHT, FORWARD, IDLE
from jaxpipe.schedules import build, simulate
from jaxpipe.schedules.costs import Costs
from jaxpipe.schedules.generators.catalog import GENERATORS
from jaxpipe.schedules.ticks import fuse_backward, split_backward

SIZES = [(2, 4), (3, 7), (4, 8)]


def lowered(name: str, num_ranks: int, num_microbatches: int, **options: object) -> TickTable:
    return lower(build(name, num_ranks=num_ranks, num_microbatches=num_microbatches), **options)


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("transfer_ticks", [1, 2])
def test_segments_of_every_schedule_are_proved(name: str, transfer_ticks: int) -> None:
    """By the replay of the whole table, in which nothing happens that the segments have no code for."""
    schedule = build(name, num_ranks=4, num_microbatches=8)
    for fuses in (False, True):
        table = lower(schedule, transfer_ticks=transfer_ticks, fuse_backward=fuses)
        replay(table, schedule, specialised(table))
        replay(table, schedule, whole(table))


def test_the_steady_state_of_1f1b_is_one_segment_of_two_ticks() -> None:
    """And warm-up is rows of F alone; there no rank hears the one above."""
    table = lowered("1f1b", 4, 32, fuse_backward=True)
    segments = specialised(table)
    longest = max(segments, key=lambda segment: segment.stop - segment.start)
    assert longest.period == 2
    assert longest.stop - longest.start > table.num_ticks / 2
    first = segments[0].uses[0]
    assert first.kinds == {IDLE, FORWARD}
    assert (first.up, first.down) == (((0, 1),), ())
    assert segments[-1].uses[0].kinds == {IDLE}  # the last row serves the embedding alone
    assert segments[-2].uses[0].kinds == {IDLE, BACKWARD_WEIGHT}


@pytest.mark.parametrize("name", GENERATORS)
def test_the_number_of_programs_does_not_grow_with_microbatches(name: str) -> None:
    """So compile time does not either."""

    def num_ticks_compiled(num_microbatches: int) -> int:
        return sum(segment.period for segment in specialised(lowered(name, 4, num_microbatches)))

    assert num_ticks_compiled(64) == num_ticks_compiled(32) == num_ticks_compiled(16)


def test_a_missing_use_is_found() -> None:
    """Each kind, hop and end that is taken from a segment makes the replay fail."""
    schedule = build("1f1b", num_ranks=3, num_microbatches=4)
    table = lower(schedule)
    segments = specialised(table)
    num_found = 0
    for index, segment in enumerate(segments):
        use = segment.uses[0]
        poorer = [replace(use, kinds=use.kinds - {kind}) for kind in use.kinds]
        poorer += [replace(use, up=tuple(hop for hop in use.up if hop != gone)) for gone in use.up]
        poorer += [replace(use, down=tuple(hop for hop in use.down if hop != gone)) for gone in use.down]
        poorer += [
            replace(use, **{end: frozenset()}) for end in ("embed", "head", "unembed") if getattr(use, end)
        ]
        for less in poorer:
            changed = replace(segment, uses=(less, *segment.uses[1:]))
            with pytest.raises(AssertionError):
                replay(table, schedule, [*segments[:index], changed, *segments[index + 1 :]])
            num_found += 1
    assert num_found > 20


@pytest.mark.parametrize(
    "broken", [lambda s: s[1:], lambda s: s[:-1], lambda s: (s[1], s[0], *s[2:]), lambda s: (*s, s[-1])]
)
def test_segments_that_are_not_the_table_are_found(broken) -> None:  # type: ignore[no-untyped-def]
    schedule = build("1f1b", num_ranks=2, num_microbatches=4)
    table = lower(schedule)
    with pytest.raises(AssertionError, match="segment"):
        replay(table, schedule, broken(specialised(table)))


def test_a_period_must_be_whole() -> None:
    schedule = build("1f1b", num_ranks=2, num_microbatches=4)
    table = lower(schedule)
    (one,) = whole(table)
    uneven = Segment(0, table.num_ticks, one.uses * (table.num_ticks - 1))
    with pytest.raises(AssertionError, match="does not follow"):
        replay(table, schedule, [uneven])


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("num_ranks", [4, 8])
def test_specialised_programs_are_never_slower_and_never_beat_free_messages(
    name: str, num_ranks: int
) -> None:
    """Waits that are left out only shorten; and every message its own is the least waiting there can be."""
    schedule = split_backward(build(name, num_ranks=num_ranks, num_microbatches=16))
    costs = Costs(F=1.15, B=1.385, W=1.0)
    scan = simulate(schedule, costs=costs, sync="neighbor").makespan
    segments = simulate(schedule, costs=costs, sync="neighbor", specialised=True).makespan
    alone = simulate(schedule, costs=costs).makespan
    assert alone <= segments * (1 + 1e-9)
    assert segments <= scan * (1 + 1e-9)


def test_specialised_1f1b_loses_fewer_waits() -> None:
    """At unequal costs ranks drift apart where no message couples them."""
    schedule = fuse_backward(build("1f1b", num_ranks=8, num_microbatches=64))
    costs = Costs(F=1.15, B=1.385, W=1.0)
    scan = simulate(schedule, costs=costs, sync="neighbor")
    segments = simulate(schedule, costs=costs, sync="neighbor", specialised=True)
    assert segments.makespan < scan.makespan
    work = 64 * (1.15 + 1.385 + 1.0)
    assert np.isclose(work / scan.makespan, 0.688, atol=5e-4)
    assert np.isclose(work / segments.makespan, 0.901, atol=5e-4)  # as if every message were its own


def test_the_efficiencies_of_the_documentation_are_those_of_the_simulator() -> None:
    """The table of docs/performance.md, all of it."""
    text = (Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
    table = text.split("| order | every message its own |")[1].split("\n\n")[0].splitlines()[2:]
    costs, num_rows = Costs(F=1.15, B=1.385, W=1.0), 0
    for row in table:
        label, *figures = (cell.strip() for cell in row.strip("|").split("|"))
        schedule = build(label.split(",")[0].removesuffix(":2"), num_ranks=8, num_microbatches=64)
        schedule = (fuse_backward if "as one action" in label else split_backward)(schedule)
        lowered = {"costs": costs, "sync": "neighbor"}
        found = [
            simulate(schedule, costs=costs),
            simulate(schedule, **lowered),
            simulate(schedule, **lowered, specialised=True),
            simulate(schedule, **lowered, transfer_ticks=2),
            simulate(schedule, **lowered, transfer_ticks=2, specialised=True),
        ]
        assert figures == [f"{result.ideal / result.makespan:.3f}"[1:] for result in found], label
        num_rows += 1
    assert num_rows == 7
