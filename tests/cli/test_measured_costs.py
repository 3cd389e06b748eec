"""``--costs FILE``: schedules with what was measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe.cli import main
from jaxpipe.planning.costs_file import REMATS, ActionSeconds, MeasuredCosts, to_text

ONE, THREE = ActionSeconds(1.0, 2.0, 4.0, 6.0, 1.0), ActionSeconds(2.0, 4.0, 8.0, 12.0, 2.0)
COSTS = MeasuredCosts(
    platform="cpu",
    device_kind="cpu",
    num_devices=2,
    model={"num_hidden_layers": 6},
    compute_dtype="float32",
    sequence_length=128,
    tokens=256,
    tp=1,
    stage_layers=3,
    layer=dict.fromkeys(REMATS, ONE) | {"none": replace(ONE, B=1.0)},
    stage=dict.fromkeys(REMATS, THREE) | {"none": replace(THREE, B=2.0)},
    head=3.0,
    embedding=0.5,
    message_bytes=1024,
    transfer=0.25,
    tick=0.125,
    update_per_parameter=1e-9,
    sharing=(1.0, 1.0),
)
SIZES = ["--ranks", "2", "--microbatches", "1"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "costs.json"
    path.write_text(to_text(COSTS))
    return str(path)


def makespan(capsys: pytest.CaptureFixture[str], *options: str) -> float:
    assert main(["schedule", "show", "1f1b", *SIZES, "--format", "json", *options]) == 0
    return json.loads(capsys.readouterr().out)["makespan"]


def test_a_stage_costs_what_its_layers_were_measured_to(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # two stages of three layers, one microbatch: one after the other, two messages, the embedding twice
    both = 2 * (2 + 4 + 8) + 2 * 0.25 + 3 + 2 * 0.5
    assert makespan(capsys, "--costs", file) == both
    assert makespan(capsys, "--costs", file, "--remat", "none") == both - 2 * 2
    # a stage of one layer takes 1 + 2 + 4
    assert makespan(capsys, "--costs", file, "--layers", "2") == both - 2 * 7


def test_the_lowered_program_sends_both_ways_at_every_tick(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # F, F, B and then W beside the other's B, W: shares of the ends halve, three hops of 2 x 0.25 + 0.125
    halves = 0.5 / 2 + 3 / 2 + 0.5 / 2
    given = ["--cost", "F=2", "--cost", "B=4", "--cost", "W=8", "--cost", "head=3", "--cost", "embedding=0.5"]
    by_hand = makespan(capsys, *given, "--sync", "neighbor", "--transfer", "0.625")
    assert makespan(capsys, "--costs", file, "--sync", "neighbor") == by_hand
    assert by_hand > 2 + 2 + 4 + 8 + 8 + halves


def test_compare_divides_the_same_layers_among_chunks(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["schedule", "compare", "1f1b", "interleaved:3", "--ranks", "1", "--microbatches", "1"]
    assert main([*words, "--costs", file, "--layers", "9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # nine layers: 1 + 8 / 2 of F; three times three layers: 3 x 2 of F
    ends = 3 + 2 * 0.5
    assert lines[1].split()[2] == f"{5 + 10 + 20 + ends:g}"
    assert lines[2].split()[2] == f"{3 * (2 + 4 + 8) + ends:g}"


def test_auto_and_trace_take_them_too(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "auto", *SIZES, "--chunks", "1", "--costs", file, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan"] <= 2 * 14 + 0.5 + 3 + 1
    trace = str(tmp_path / "trace.json")
    assert main(["schedule", "trace", "1f1b", *SIZES, "--costs", file, "-o", trace]) == 0
    events = json.loads(Path(trace).read_text())["traceEvents"]
    assert max(event.get("ts", 0) + event.get("dur", 0) for event in events) == pytest.approx(32.5e6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--costs", "FILE", "--cost", "F=2"], "--costs says what --cost and --transfer would say"),
        (["--costs", "FILE", "--transfer", "0"], "--costs says what --cost and --transfer would say"),
        (["--costs", "FILE", "--remat", "some"], "--remat 'some' must be one of full, selective, none"),
        (["--costs", "FILE", "--layers", "1"], "--layers 1 cannot fill 2 stages; use at least 2"),
        (["--costs", "FILE", "--layers", "0"], "--layers 0 must be at least 1"),
        (["--costs", "none.json", "--layers", "x"], "--layers 'x' must be a whole number"),
        (["--costs", "none.json", "--layers", "x"], "--costs none.json: cannot be read"),
        (["--layers", "4"], "--layers is for --costs; give that too, or leave it out"),
        (["--remat", "full"], "--remat is for --costs; give that too, or leave it out"),
    ],
)
def test_what_does_not_fit_is_refused(
    options: list[str], said: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [file if word == "FILE" else word for word in options]
    assert main(["schedule", "show", "1f1b", *SIZES, *given]) == 2
    assert said in capsys.readouterr().err


def test_auto_by_name_is_not_made_for_what_was_measured(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schedule", "show", "auto", *SIZES, "--costs", file]) == 2
    assert "auto by name is made for F = B = W = 1" in capsys.readouterr().err
