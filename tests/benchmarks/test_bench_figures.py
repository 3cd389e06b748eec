"""The benchmark's arithmetic: turns, ratios, verdicts and the picture. What it times is not timed here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.criteria import misses
from benchmarks.picture import draw
from benchmarks.timing import ratios, spread, time_in_turn

ROOT = Path(__file__).parents[2]

KEYS = {
    "schedule",
    "ranks",
    "microbatches",
    "compile_seconds",
    "temp_bytes_per_device",
    "step_seconds",
    "step_seconds_min",
    "step_seconds_max",
    "tokens_per_second",
    "ratio_to_unpipelined",
    "ratio_min",
    "ratio_max",
    "num_ticks",
    "fuse_backward",
}


def row(schedule: str, microbatches: int, **changes: Any) -> dict[str, Any]:
    good = {
        "compile_seconds": 4.0,
        "temp_bytes_per_device": 25_000_000,
        "ratio_to_unpipelined": 0.8,
        "ratio_min": 0.7,
        "ratio_max": 0.9,
    }
    return {"schedule": schedule, "microbatches": microbatches} | good | changes


def good_rows() -> dict[tuple[str, int], dict[str, Any]]:
    return {(s, m): row(s, m) for s in ("gpipe", "1f1b", "zb_h1") for m in (4, 8, 16, 64)}


def test_steps_take_turns_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []
    seconds = time_in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert "".join(calls) == "ba" + "ab" + "ba" + "ab"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_taken_round_by_round() -> None:
    # the median of the ratios, where the ratio of the medians would be 2 / 2
    assert ratios([2.0, 1.0, 8.0], [1.0, 2.0, 2.0]) == spread([2.0, 0.5, 4.0]) == (2.0, 0.5, 4.0)


def test_good_figures_miss_nothing() -> None:
    assert list(misses(list(good_rows().values()))) == []


@pytest.mark.parametrize(
    ("at", "change", "named"),
    [
        (("gpipe", 64), {"compile_seconds": 6.1}, "compile_seconds at m=64"),
        (("1f1b", 64), {"temp_bytes_per_device": 26_500_000}, "temp_bytes_per_device at m=64"),
        (("zb_h1", 64), {"temp_bytes_per_device": 26_500_000}, "temp_bytes_per_device at m=64"),
        (("1f1b", 8), {"ratio_to_unpipelined": 0.91}, "m=8"),
        (("zb_h1", 16), {"ratio_to_unpipelined": 1.01}, "m=16"),
    ],
)
def test_each_figure_can_be_missed(at: tuple[str, int], change: dict[str, Any], named: str) -> None:
    rows = good_rows()
    rows[at] |= change
    (sentence,) = misses(list(rows.values()))
    assert sentence.startswith(at[0])
    assert named in sentence


def test_gpipe_may_hold_more_with_more_microbatches() -> None:
    rows = good_rows()
    rows["gpipe", 64]["temp_bytes_per_device"] *= 5
    assert list(misses(list(rows.values()))) == []


def test_what_was_not_measured_is_not_judged() -> None:
    assert list(misses([row("1f1b", 4, ratio_to_unpipelined=3.0), row("zb_h1", 16)])) == []


@pytest.mark.parametrize("rows", [list(good_rows().values()), [row("1f1b", 8)]], ids=["all", "one"])
def test_the_picture_is_xml_with_every_schedule_in_it(rows: list[dict[str, Any]]) -> None:
    texts = [element.text for element in ElementTree.fromstring(draw(rows)).iter() if element.text]
    assert {entry["schedule"] for entry in rows} <= set(texts)


@pytest.mark.slow
def test_the_benchmark_prints_a_line_with_every_figure() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.bench",
        "--schedules",
        "1f1b",
        "--microbatches",
        "4",
        "--rounds",
        "1",
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    (line,) = run.stdout.splitlines()
    figures = json.loads(line)
    assert set(figures) >= KEYS
    assert figures["step_seconds_min"] <= figures["step_seconds"] <= figures["step_seconds_max"]
    assert figures["num_ticks"] == 15
