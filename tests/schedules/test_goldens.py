"""The published figures: unit costs, no transfer time, every message its own."""

import csv
from pathlib import Path

import pytest

from jaxpipe.schedules import GENERATORS, Simulation, build, simulate

GOLDENS = list(csv.DictReader(Path(__file__).with_name("goldens.csv").read_text().splitlines()))

BEATEN = {
    ("chimera", "4", "4"): 14,
    ("chimera", "4", "8"): 26,
    ("chimera", "4", "16"): 50,
    ("v_half", "4", "4"): 29,
    ("zb_v_torch", "4", "4"): 27,
}
"""Makespans that ours have below the published ones, with the same memory on the rank that holds most."""

FIGURES = ("makespan", "ideal", "bubble", "longest_rank_span")


def name_of(golden: dict[str, str]) -> str:
    """Torch's zb_v is a golden of its own, to be met by ours."""
    return golden["schedule"].removesuffix("_torch")


def simulation_of(golden: dict[str, str]) -> Simulation:
    sizes = {f"num_{size}": int(golden[size]) for size in ("ranks", "microbatches", "chunks")}
    return simulate(build(name_of(golden), **sizes))


def peak(text: str) -> int:
    return max(map(int, text.split("/")))


def test_every_schedule_has_goldens() -> None:
    assert {name_of(golden) for golden in GOLDENS} == set(GENERATORS)


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: "-".join([*golden.values()][:4]))
def test_figures_are_the_published_ones_or_better(golden: dict[str, str]) -> None:
    simulation = simulation_of(golden)
    key = golden["schedule"], golden["ranks"], golden["microbatches"]
    for figure in FIGURES:
        got, published = getattr(simulation, figure), float(golden[figure])
        assert got <= published, figure
    assert simulation.makespan == BEATEN.get(key, float(golden["makespan"]))
    assert max(simulation.peak_until_backward) <= peak(golden["peak_until_backward"])
    assert max(simulation.peak_until_weight) <= peak(golden["peak_until_weight"])


RULES = (
    "1f1b",
    "dualpipe",
    "dualpipe_v",
    "gpipe",
    "interleaved",
    "interleaved_zb",
    "looped_bfs",
    "zb_h1",
    "zb_h2",
    "zb_v",
)
"""Whose order is written down: what each rank holds is as published too. (The others are squeezed.)"""


@pytest.mark.parametrize(
    "golden",
    [golden for golden in GOLDENS if golden["schedule"] in RULES],
    ids=lambda golden: "-".join([*golden.values()][:4]),
)
def test_each_rank_holds_what_is_published(golden: dict[str, str]) -> None:
    simulation = simulation_of(golden)
    for figure in ("peak_until_backward", "peak_until_weight"):
        assert "/".join(map(str, getattr(simulation, figure))) == golden[figure], figure


# p = 8, by the closed forms


@pytest.mark.parametrize("m", [16, 32])
@pytest.mark.parametrize(
    ("name", "bubble", "held"),
    [
        ("gpipe", 21, None),
        ("1f1b", 21, 8),
        ("interleaved", 21, 23),
        ("looped_bfs", 21, None),
        ("zb_h1", 7, 8),
        ("zb_h2", 7, 16),
        ("interleaved_zb", 7, 16),
        ("zb_v", 7, 16),
        ("v_half", 17, 10),
        ("v_min", 27, 8),
        ("dualpipe", 3, 9),
        ("dualpipe_v", 7, 17),
        ("chimera", 4, 8),
    ],
)
def test_eight_ranks(name: str, bubble: int, held: int | None, m: int) -> None:
    simulation = simulate(build(name, num_ranks=8, num_microbatches=m))
    assert simulation.bubble == bubble
    assert max(simulation.peak_until_weight) == (held or m * (2 if name == "looped_bfs" else 1))
