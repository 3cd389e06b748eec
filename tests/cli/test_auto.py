"""``jaxpipe schedule auto``, and ``auto`` among other commands: made for the costs that are given."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxpipe.cli import main
from jaxpipe.schedules import Costs, build, from_csv, simulate
from jaxpipe.solver import Solution

SIZES = ("--ranks", "4", "--microbatches", "8")
COSTS = ("--cost", "F=10", "--cost", "B=12", "--cost", "W=8", "--transfer", "1")

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*argv: str) -> tuple[int, str, str]:
        code = main(["schedule", *argv])
        return code, *capsys.readouterr()

    return run


def test_what_was_found_is_told_beside_what_no_order_can_beat(say: Say) -> None:
    code, out, err = say("auto", *SIZES, *COSTS, "--memory", "4")
    assert (code, err) == (0, "")
    assert out.startswith("makespan ")
    for words in ("no order of at most 2 chunks", "best named schedule:", "orders timed", "rank 0 |F0"):
        assert words in out


def test_it_is_no_slower_than_any_named_schedule_at_these_costs(say: Say) -> None:
    found = json.loads(say("auto", *SIZES, *COSTS, "--format", "json")[1])
    _, table, _ = say("compare", "1f1b", "zb_h1", "zb_h2", "interleaved", "zb_v", "auto", *SIZES, *COSTS)
    makespans = {line.split()[0]: float(line.split()[2]) for line in table.splitlines()[1:7]}
    assert makespans["auto"] == pytest.approx(found["makespan"])
    assert found["lower_bound"] <= found["makespan"] <= min(makespans.values())


def test_the_csv_is_the_schedule(say: Say, tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    arguments = ("auto", *SIZES, *COSTS, "--memory", "3")
    found = json.loads(say(*arguments, "--format", "json")[1])
    assert say(*arguments, "--format", "csv", "-o", str(file)) == (0, "", "")
    schedule = from_csv(file.read_text())
    num_chunks = schedule.placement.num_chunks
    costs = Costs(F=10 / num_chunks, B=12 / num_chunks, W=8 / num_chunks)
    assert simulate(schedule, costs=costs, transfer=1).makespan == pytest.approx(found["makespan"])
    assert max(found["peak_until_weight"]) <= 3 * num_chunks


def test_sizes_in_bytes_are_a_limit_too(say: Say) -> None:
    """100 bytes of weights and activations of 10: room for three."""
    sizes = ("--memory", "130", "--activation", "10", "--weights", "100", "--format", "json")
    found = json.loads(say("auto", *SIZES, *sizes)[1])
    assert max(found["peak_until_weight"]) <= 3 * found["chunks"]
    assert found["memory_in_units_of_the_limit"] <= 130


def test_the_exact_solver_says_how_far_it_is_from_the_best(say: Say) -> None:
    pytest.importorskip("ortools")
    code, out, _ = say("auto", "--ranks", "2", "--microbatches", "3", "--exact", "30")
    assert code == 0
    assert "exact solver, on this placement: OPTIMAL" in out
    assert "at most 0.0% above the best" in out


@pytest.mark.parametrize(
    ("solution", "words"),
    [
        (Solution(None, "UNKNOWN", math.inf, 0.0), "UNKNOWN, it had no time to say anything; give it more"),
        (Solution(None, "UNKNOWN", math.inf, -math.inf), "UNKNOWN, it had no time to say anything"),
        (Solution(None, "UNKNOWN", math.inf, 14.5), "no order in that time, none below 14.5: what was found"),
    ],
)
def test_a_solver_without_time_says_no_more_than_it_knows(
    say: Say, monkeypatch: pytest.MonkeyPatch, solution: Solution, words: str
) -> None:
    monkeypatch.setattr("jaxpipe.cli.auto.solve", lambda *_, **__: solution)
    code, out, _ = say("auto", "--ranks", "4", "--microbatches", "3", "--chunks", "1", "--exact", "0.001")
    assert code == 0
    assert words in out


def test_the_solver_says_nothing_weaker_than_the_search(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    weak = Solution(build("zb_h1", num_ranks=4, num_microbatches=3), "FEASIBLE", 99.0, 2.0)
    monkeypatch.setattr("jaxpipe.cli.auto.solve", lambda *_, **__: weak)
    arguments = ("auto", "--ranks", "4", "--microbatches", "3", "--chunks", "1", "--exact", "1")
    least = json.loads(say(*arguments, "--format", "json")[1])["lower_bound"]
    assert f"FEASIBLE, makespan 99, none below {least:g}: " in say(*arguments)[1]


def test_without_the_solver_the_extra_is_named(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    code, out, err = say("auto", "--ranks", "2", "--microbatches", "3", "--exact", "30")
    assert (code, out) == (2, "")
    assert "pip install 'jaxpipe[solver]'" in err


def test_all_that_is_wrong_is_told_at_once(say: Say) -> None:
    code, out, err = say(
        *("auto", "--microbatches", "x", "--memory", "-1", "--weights", "y", "--exact", "0", "--chunks", "0"),
        *("--cost", "F=-1", "--format", "png"),
    )
    assert (code, out) == (2, "")
    for words in (
        "--ranks is missing",
        "--microbatches 'x' must be a whole number",
        "memory limit=-1.0 must be at least 1e-09",
        "--weights 'y' must be a number",
        "--exact 0 must be more than 0",
        "--chunks 0 must be at least 1 and at most 8",
        "cost F=-1.0 must be at least",
        "--format 'png' must be one of text, json, svg, html, csv",
    ):
        assert words in err, words


@pytest.mark.parametrize(
    ("is_terminal", "said"), [(True, "searching, which can take a minute\n"), (False, "")]
)
def test_a_person_is_told_of_a_search_that_takes_long(
    say: Say, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, said: str
) -> None:
    monkeypatch.setattr("jaxpipe.cli.auto._SILENT_FOR", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    code, _, err = say("auto", *SIZES, *COSTS)
    assert (code, err) == (0, said)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (("100", "1000"), "num_ranks x num_chunks=200 must be at most 181 for auto; use fewer chunks"),
        (("32", "1000"), "64 x 1000 = 64000 must be at most 32768 for auto; use at most 512 microbatches"),
    ],
)
def test_a_search_that_would_take_minutes_is_refused(say: Say, sizes: tuple[str, str], words: str) -> None:
    for command in (("auto",), ("show", "auto"), ("compare", "auto")):
        code, out, err = say(*command, "--ranks", sizes[0], "--microbatches", sizes[1])
        assert (code, out) == (2, "")
        assert words in err


def test_a_memory_in_which_nothing_fits_is_refused(say: Say) -> None:
    code, _, err = say("auto", *SIZES, "--memory", "0.5")
    assert code == 2
    assert "memory limit=0.5 must be at least 1, what one microbatch alone holds" in err


def test_auto_by_name_does_not_pretend_to_be_made_for_other_costs(say: Say) -> None:
    for command in ("show", "trace"):
        code, _, err = say(command, "auto", *SIZES, "--cost", "F=2")
        assert code == 2
        assert "auto by name is made for F = B = W = 1 and free messages" in err
    assert say("show", "auto", *SIZES)[0] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--memory", "inf"), "memory limit=inf must be at least 1e-09 and at most 1e+18"),
        (("--memory", "9", "--activation", "inf"), "memory activation=inf must be"),
        (("--memory", "nan"), "memory limit=nan must be"),
        (("--cost", "F=1,2,3,4,5,6,7,8", "--chunks", "1"), "--chunks is settled by costs of each stage"),
        (("--two-pipes", "--exact", "5"), "--exact knows one pipe, so it cannot judge --two-pipes"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_the_search(
    say: Say, options: tuple[str, ...], words: str
) -> None:
    code, out, err = say("auto", *SIZES, *options)
    assert (code, out) == (2, "")
    assert words in err
