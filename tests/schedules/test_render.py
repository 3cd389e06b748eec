"""Grids that fit, wrap or are cut, and say so."""

import re
from dataclasses import replace

import pytest

from jaxpipe.schedules import (
    GENERATORS,
    Costs,
    as_dict,
    build,
    forward_only,
    looped,
    order_grid,
    simulate,
    time_grid,
)
from jaxpipe.schedules.schedule import Schedule


def grid(schedule: Schedule, costs: Costs | None = None, *, width: int = 80) -> str:
    return time_grid(schedule, simulate(schedule, costs=costs or Costs()), width=width)


def names(text: str) -> list[str]:
    return re.findall(r"[FBW]+\d+", text)


def test_a_small_grid_reads_like_the_paper() -> None:
    assert grid(build("zb_h1", num_ranks=2, num_microbatches=3)).splitlines() == [
        "rank 0 |F0 F1 ...B0 W0 F2 B1 W1 B2 W2",
        "rank 1 |...F0 B0 F1 B1 W0 F2 B2 W1 W2",
    ]


@pytest.mark.parametrize("name", GENERATORS)
def test_four_ranks_and_eight_microbatches_fit_a_terminal(name: str) -> None:
    text = grid(build(name, num_ranks=4, num_microbatches=8))
    assert len(text.splitlines()) == 4
    assert max(map(len, text.splitlines())) <= 80


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
    schedule = build(name, num_ranks=3, num_microbatches=4)
    simulation = simulate(schedule, costs=Costs(*costs), transfer=transfer)
    assert 0 <= simulation.bubble_fraction <= 1
    assert len(time_grid(schedule, simulation, width=80)) < 60_000  # 3 ranks, 2000 columns x 4 at most, heads


@pytest.mark.parametrize("width", [40, 80])
def test_no_line_of_a_grid_ends_in_blanks(width: int) -> None:
    for name in GENERATORS:
        lines = grid(build(name, num_ranks=3, num_microbatches=11), width=width).splitlines()
        assert lines == [line.rstrip() for line in lines]


@pytest.mark.parametrize(("cost", "drawing"), [(0.05, "#"), (0.001, ".")])
def test_an_action_too_short_for_its_name_is_cut_and_said_to_be(cost: float, drawing: str) -> None:
    text = grid(build("1f1b", num_ranks=2, num_microbatches=2), Costs(F=cost))
    assert text.splitlines()[-1] == "(an action too short for its name is drawn as #, or not at all)"
    assert text.startswith(f"rank 0 |{drawing}")
    assert "F" not in text


def test_stages_are_named_where_a_rank_has_several() -> None:
    assert grid(forward_only(looped(2, 2), 1)).splitlines() == [
        "rank 0 |0F0 ....2F0 ....",
        "rank 1 |....1F0 ....3F0",
    ]


def test_a_long_order_is_cut_around_what_is_marked() -> None:
    schedule = build("1f1b", num_ranks=2, num_microbatches=50)
    marked = schedule.orders[1][60]
    lines = order_grid(schedule, marked={marked}, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert f"[{marked}]" in lines[1]
    assert re.fullmatch(r"\(cut: actions \d+ to \d+ of 0 to 99 on each rank\)", lines[2])


def test_an_empty_rank_has_a_line_too() -> None:
    schedule = replace(build("gpipe", num_ranks=2, num_microbatches=1), orders=((), ()))
    assert order_grid(schedule).splitlines() == ["rank 0 |", "rank 1 |"]


def test_the_dictionary_has_plain_values() -> None:
    schedule = build("1f1b", num_ranks=2, num_microbatches=2)
    assert as_dict(schedule, simulate(schedule)) == {
        "schedule": "1f1b",
        "ranks": 2,
        "microbatches": 2,
        "chunks": 1,
        "makespan": 9.0,
        "ideal": 6.0,
        "bubble": 3.0,
        "bubble_fraction": 1 / 3,
        "longest_rank_span": 9.0,
        "peak_until_backward": [2, 1],
        "peak_until_weight": [2, 1],
        "actions": [["0F0", "0F1", "0BW0", "0BW1"], ["1F0", "1BW0", "1F1", "1BW1"]],
    }
