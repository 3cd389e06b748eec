"""The published figures: unit costs, no transfer time, every message its own."""

import csv
from pathlib import Path

import pytest

from jaxpipe.schedules import GENERATORS, build, simulate

GOLDENS = list(csv.DictReader(Path(__file__).with_name("goldens.csv").read_text().splitlines()))


def test_every_schedule_has_goldens() -> None:
    assert {golden["schedule"] for golden in GOLDENS} == set(GENERATORS)


@pytest.mark.parametrize(
    "golden",
    GOLDENS,
    ids=lambda golden: "-".join([golden["schedule"], golden["ranks"], golden["microbatches"]]),
)
def test_figures_are_the_published_ones(golden: dict[str, str]) -> None:
    schedule = build(
        golden["schedule"],
        num_ranks=int(golden["ranks"]),
        num_microbatches=int(golden["microbatches"]),
        num_chunks=int(golden["chunks"]),
    )
    simulation = simulate(schedule)
    for figure in ("makespan", "ideal", "bubble", "longest_rank_span"):
        assert getattr(simulation, figure) == float(golden[figure]), figure
    for figure in ("peak_until_backward", "peak_until_weight"):
        assert "/".join(map(str, getattr(simulation, figure))) == golden[figure], figure
