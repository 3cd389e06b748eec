"""Orders that are cut, and figures as plain values."""

import re
from dataclasses import replace

from jaxpipe.schedules import as_dict, build, order_grid, simulate


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
