"""Reading ``metrics.jsonl``: strict, but for a last line that is still being written; what makes a curve."""

import math
from pathlib import Path

import pytest

from jaxpipe.curves.records import numbers_of, read_records
from jaxpipe.curves.run_curves import curves_of, smoothed
from jaxpipe.errors import InputError


@pytest.mark.parametrize("torn", ["", '{"step": 3, "lo', "{"])
def test_a_torn_last_line_is_not_there(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1, "loss": 2.5}}\n{{"step": 2, "loss": 2.0}}\n{torn}')
    assert read_records(path) == [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0}]


@pytest.mark.parametrize(
    "line",
    [
        *("nonsense", "[1]", '{"loss": 1.0}', '{"step": "2"}', '{"step": true}', ""),
        *(f'{{"step": {10**400}}}', '{"step": 1e400}', f'{{"step": 2, "loss": {10**400}}}'),
        '{"step": 2, "loss": 1' + 5000 * "0" + "}",  # more digits than Python makes an int of
        '{"step": 2, "loss": ' + 100_000 * "[" + 100_000 * "]" + "}",
    ],
    ids=lambda line: line[:25],
)
def test_any_other_line_that_is_no_record_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(InputError, match="line 2 is"):
        read_records(path)


def test_numbers_are_curves_and_texts_switches_and_the_step_are_not() -> None:
    numbers = numbers_of(
        {
            "step": 3,
            "loss": "NaN",
            "grad_norm": "-Infinity",
            "skipped": 1,
            "final": True,
            "hash": "1e5",
            "no": None,
        }
    )
    assert math.isnan(numbers.pop("loss"))
    assert numbers == {"grad_norm": -math.inf, "skipped": 1.0}


def test_what_is_not_finite_is_kept_apart_from_the_points() -> None:
    curves = curves_of(
        [
            {"step": 1, "loss": 3.0},
            {"step": 2, "loss": "NaN"},
            {"step": 2, "eval_loss": 2.0},
            {"step": 4, "loss": 1.0},
        ]
    )
    assert curves["loss"] == ((1, 4), (3.0, 1.0), (2,))
    assert curves["eval_loss"] == ((2,), (2.0,), ())


def test_smoothing_takes_as_many_on_both_sides_and_leaves_a_line_straight() -> None:
    assert smoothed([0.0, 3.0, 0.0, 0.0, 6.0], 3) == [0.0, 1.0, 1.0, 2.0, 6.0]
    line = [2.0 * index for index in range(9)]
    assert smoothed(line, 5) == line
    assert smoothed(line, 1) == line
    assert smoothed([7.0], 100) == [7.0]


def test_a_spike_leaves_nothing_in_the_means_that_do_not_hold_it() -> None:
    means = smoothed([3.0, 3.0, 1e100, 3.0, 3.0, 5.0, 7.0], 3)
    assert means[4:] == [pytest.approx(11 / 3, rel=1e-15), 5.0, 7.0]
    assert smoothed([1.7e308] * 3, 3) == [1.7e308] * 3


def test_what_an_axis_cannot_hold_is_kept_apart_too() -> None:
    records = [{"step": step, "loss": value} for step, value in enumerate([1.0, 1e308, -1e308, 1e100])]
    assert curves_of(records)["loss"] == ((0, 3), (1.0, 1e100), (1, 2))
