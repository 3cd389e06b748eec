"""``--recompute``: every command that shows or writes a schedule knows recomputation as an action."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxpipe.cli import main
from jaxpipe.schedules import build, from_csv, with_recompute

SIZES = ("--ranks", "4", "--microbatches", "8")

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*argv: str) -> tuple[int, str, str]:
        code = main(["schedule", *argv])
        return code, *capsys.readouterr()

    return run


def test_show_draws_r_and_takes_its_cost(say: Say) -> None:
    """(m+p-1)(F+BW) + mR."""
    _, out, _ = say("show", "1f1b", *SIZES, "--recompute", "--cost", "R=0.5")
    assert "F forward, R forward again, BW both" in out
    assert out.split("\n")[0].split("..")[0] == "rank 0 |F0    F1    F2    F3    R0 "
    assert "makespan 37, ideal 28," in out
    assert json.loads(say("show", "1f1b", *SIZES, "--recompute", "--format", "json")[1])["makespan"] == 41


def test_its_cost_alone_changes_nothing(say: Say) -> None:
    assert say("show", "zb_h1", *SIZES, "--cost", "R=9") == say("show", "zb_h1", *SIZES)


def test_pictures_and_traces_have_r(say: Say) -> None:
    _, drawn, _ = say("show", "zb_h1", *SIZES, "--recompute", "--format", "svg")
    assert 'class="box R ' in drawn
    assert "R forward again" in drawn
    assert 'class="box R ' not in say("show", "zb_h1", *SIZES, "--format", "svg")[1]
    _, traced, _ = say("trace", "zb_h1", *SIZES, "--recompute")
    slices = [event for event in json.loads(traced)["traceEvents"] if event.get("cat") == "R"]
    assert len(slices) == 32
    assert {event["dur"] for event in slices} == {1_000_000}


def test_compare_places_r_in_each_at_the_costs_of_a_rank(say: Say) -> None:
    """A rank's R costs 1 in all, whether it has one stage or two; auto is no slower than the others."""
    _, out, _ = say(
        "compare", "1f1b", "zb_h1", "interleaved", "auto", *SIZES, "--recompute", "--cost", "R=1.0"
    )
    makespans = {line.split()[0]: float(line.split()[2]) for line in out.splitlines()[1:5]}
    assert (makespans["1f1b"], makespans["zb_h1"], makespans["interleaved"]) == (41, 35, 36.5)
    assert makespans["auto"] <= 35


def test_auto_finds_an_order_with_r_that_show_reads(say: Say, tmp_path: Path) -> None:
    file = tmp_path / "best.csv"
    request = ("auto", *SIZES, "--recompute", "--sync", "neighbor", "--transfer-ticks", "2", "--chunks", "1")
    found = json.loads(say(*request, "--format", "json")[1])
    assert found["makespan"] <= found["best_named_makespan"]
    assert say(*request, "--format", "csv", "-o", str(file)) == (0, "", "")
    assert from_csv(file.read_text()).recomputes
    shown = json.loads(
        say("show", str(file), "--sync", "neighbor", "--transfer-ticks", "2", "--format", "json")[1]
    )
    assert shown["makespan"] == found["makespan"]


def test_csv_writes_r_at_equal_costs(say: Say) -> None:
    _, out, _ = say("csv", "zb_v", "--ranks", "3", "--microbatches", "5", "--recompute")
    assert from_csv(out) == with_recompute(build("zb_v", num_ranks=3, num_microbatches=5))


def test_what_cannot_be_is_refused_with_a_remedy(say: Say, tmp_path: Path) -> None:
    file = tmp_path / "again.csv"
    say("csv", "1f1b", "--ranks", "2", "--microbatches", "2", "--recompute", "-o", str(file))
    for command in ("show", "compare", "trace", "csv"):
        code, _, err = say(command, str(file), "--recompute")
        assert code == 2
        assert "--recompute: schedule 'again' has R already; leave it as it is" in err
    code, _, err = say("csv", "1f1b", *SIZES, "--recompute", "--format", "torch")
    assert (code, "PyTorch's form has no R" in err) == (2, True)
    code, _, err = say("auto", *SIZES, "--recompute", "--exact", "1")
    assert (code, "--exact knows no R" in err) == (2, True)
