"""Grids of times that fit, wrap or are cut, and say so."""

import re
from itertools import pairwise

import pytest

from jaxpipe.schedules import GENERATORS, Action, Costs, build, forward_only, looped, simulate, time_grid
from jaxpipe.schedules.grid import columns_per_second, grid_legend, lines_of
from jaxpipe.schedules.schedule import Schedule


def grid(schedule: Schedule, costs: Costs | None = None, *, width: int = 80) -> str:
    return time_grid(schedule, simulate(schedule, costs=costs or Costs()), width=width)


def names(text: str) -> list[str]:
    return re.findall(r"[FBW]+\d+", text)


def bracketed(action: Action, text: str) -> str:
    """A colour that one can see: as wide as the text, since it takes no columns."""
    return text.replace(" ", "_")


def test_a_small_grid_reads_like_the_paper() -> None:
    assert grid(build("zb_h1", num_ranks=2, num_microbatches=3)).splitlines() == [
        "rank 0 |F0 F1 ...B0 W0 F2 B1 W1 B2 W2",
        "rank 1 |...F0 B0 F1 B1 W0 F2 B2 W1 W2",
    ]


@pytest.mark.parametrize("name", GENERATORS)
def test_four_ranks_and_eight_microbatches_fit_a_terminal(name: str) -> None:
    schedule = build(name, num_ranks=4, num_microbatches=8)
    lines = grid(schedule).splitlines()
    assert max(map(len, lines)) <= 80
    assert (len(lines) == 4) != lines[-1].startswith("(wrapped: ")
    if schedule.placement.num_chunks == 1:
        assert len(lines) == 4
    in_color = time_grid(schedule, simulate(schedule), paint=bracketed)
    assert len(in_color.splitlines()) == 4
    assert max(map(len, in_color.splitlines())) <= 80


@pytest.mark.parametrize("costs", [Costs(), Costs(F=1.15, B=1.385, W=1.0), Costs(F=0.5, B=1.0, W=0.25)])
@pytest.mark.parametrize("width", [40, 80, 1000])
def test_every_action_stands_in_the_grid_with_its_whole_name(costs: Costs, width: int) -> None:
    schedule = build("1f1b", num_ranks=3, num_microbatches=12)
    text = grid(schedule, costs, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert ("(wrapped: " in text) == (len(text.splitlines()) > 3)
    for rank, order in enumerate(schedule.orders):
        pieces = [line.partition("|")[2] for line in text.splitlines() if line.startswith(f"rank {rank} ")]
        assert names("".join(pieces)) == [f"{action.kind}{action.microbatch}" for action in order]


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("costs", [(1e-9, 1e9, 1.0), (1e9, 1e9, 1e-9), (1e-9, 1e-9, 1e-9)])
@pytest.mark.parametrize("transfer", [0.0, 1.0, 1e9])
def test_the_most_unlike_costs_still_give_a_grid_of_bounded_size(
    name: str, costs: tuple[float, float, float], transfer: float
) -> None:
    schedule = build(name, num_ranks=2, num_microbatches=4)
    simulation = simulate(schedule, costs=Costs(*costs), transfer=transfer)
    assert 0 <= simulation.bubble_fraction <= 1
    assert len(time_grid(schedule, simulation, width=80)) < 60_000  # 2 ranks, 2000 columns x 4 at most, heads


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("name", GENERATORS)
def test_no_line_of_a_grid_ends_in_blanks(name: str, width: int) -> None:
    lines = grid(build(name, num_ranks=4, num_microbatches=10), width=width).splitlines()
    assert lines == [line.rstrip() for line in lines]


@pytest.mark.parametrize(("cost", "drawing"), [(0.05, "#"), (0.001, ".")])
def test_an_action_too_short_for_its_name_is_cut_and_said_to_be(cost: float, drawing: str) -> None:
    text = grid(build("1f1b", num_ranks=2, num_microbatches=2), Costs(F=cost))
    assert text.splitlines()[-1] == "(an action too short for its name is drawn as #, or not at all)"
    assert text.startswith(f"rank 0 |{drawing}")
    assert "F" not in text


def test_small_letters_are_a_second_chunk_and_the_legend_says_so() -> None:
    schedule = forward_only(looped(2, 2), 1)
    assert grid(schedule).splitlines() == ["rank 0 |F0 ...f0 ___", "rank 1 |...F0 ...f0"]
    legend = grid_legend(schedule, simulate(schedule))
    assert legend == ["F forward; small letters: chunk 1", "idle: . dependency  _ drain"]


def test_small_letters_are_the_second_of_two_pipes() -> None:
    schedule = build("dualpipe", num_ranks=2, num_microbatches=4)
    assert grid(schedule).splitlines()[0].startswith("rank 0 |F0 f2 F1 b2 w2")
    assert "small letters: pipe 1" in grid_legend(schedule, simulate(schedule))[0]


def test_stages_are_named_in_full_where_a_rank_has_three() -> None:
    assert grid(forward_only(looped(2, 3), 1)).splitlines() == [
        "rank 0 |0F0 ....2F0 ....4F0 ____",
        "rank 1 |....1F0 ....3F0 ....5F0",
    ]


def test_each_cause_of_idle_time_has_a_mark_of_its_own() -> None:
    schedule = build("zb_h1", num_ranks=2, num_microbatches=3)
    costs = Costs(F=1, B=3, W=1, head=1, embedding=1)
    simulation = simulate(schedule, costs=costs, transfer=1, sync="neighbor")
    text = time_grid(schedule, simulation, width=1000)
    columns = columns_per_second(lines_of(schedule, simulation), width=1000)
    marks = {cause: mark for mark, cause in re.findall(r"(\S) (\w+)", grid_legend(schedule, simulation)[1])}
    assert set(marks) == {str(idle.cause) for idle in simulation.idle}
    assert len(set(marks.values())) == len(marks) >= 4
    for rank, line in enumerate(text.splitlines()[:2]):
        for cause, mark in marks.items():
            spent = sum(
                idle.end - idle.start
                for idle in simulation.idle
                if idle.rank == rank and str(idle.cause) == cause
            )
            assert line.count(mark) == pytest.approx(spent * columns)


def test_bars_fill_the_time_of_every_rank_without_a_gap() -> None:
    for name in GENERATORS:
        schedule = build(name, num_ranks=4, num_microbatches=8)
        simulation = simulate(
            schedule, costs=Costs(F=1.15, B=1.385, W=0.7, head=0.3), transfer=0.21, sync="neighbor"
        )
        for line in lines_of(schedule, simulation).bars:
            assert line[0].start == 0
            assert line[-1].end == simulation.makespan
            for bar, following in pairwise(line):
                assert bar.end == pytest.approx(following.start, abs=1e-9)


def test_a_grid_that_nobody_would_read_is_cut_and_says_so() -> None:
    schedule = build("1f1b", num_ranks=2000, num_microbatches=2)
    text = grid(schedule)
    assert len(text) < 2_500_000
    assert text.splitlines()[-1] == "(cut: 14 pieces, up to 322 of 6003 in time)"


def test_a_name_that_the_end_of_a_line_would_cut_stands_on_the_next() -> None:
    schedule = build("1f1b", num_ranks=2, num_microbatches=30)
    text = grid(schedule, Costs(F=1.0, B=2.0, W=1.7), width=40)
    for line in text.splitlines():
        if line.startswith("rank"):
            assert re.fullmatch(r"([FBW]+\d+|[. _])*", line.partition("|")[2]), line


def test_colour_changes_neither_columns_nor_lines() -> None:
    schedule = build("interleaved", num_ranks=4, num_microbatches=12)
    simulation = simulate(schedule)
    plain = time_grid(schedule, simulation, paint=lambda action, text: text)
    marked = time_grid(schedule, simulation, paint=lambda action, text: f"<{action.kind}{text}>")
    assert re.sub(r"<[FBW]+([^>]*)>", r"\1", marked).split("\n")[0].rstrip() == plain.split("\n")[0]
    assert "F" not in plain
