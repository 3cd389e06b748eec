"""``jaxpipe schedule show``: grids, figures and faults."""

import csv
import json
import re
import sys
import time
from pathlib import Path

import pytest

from jaxpipe.cli import main
from jaxpipe.pictures.terminal import SHADES
from jaxpipe.schedules import GENERATORS, Kind
from tests.pictures.reading import contrast

GOLDENS = Path(__file__).parents[1] / "schedules" / "goldens.csv"
SHOW = ["schedule", "show"]
SIZES = ["--ranks", "4", "--microbatches", "8"]


def faults_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*SHOW, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_json_has_the_published_figures(capsys: pytest.CaptureFixture[str]) -> None:
    for golden in csv.DictReader(GOLDENS.read_text().splitlines()):
        if golden["schedule"] not in ("gpipe", "1f1b", "interleaved", "zb_h1"):
            continue
        sizes = [
            "--ranks",
            golden["ranks"],
            "--microbatches",
            golden["microbatches"],
            "--chunks",
            golden["chunks"],
        ]
        assert main([*SHOW, golden["schedule"], *sizes, "--format", "json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        for key, value in shown.items():
            if key in golden:
                text = "/".join(map(str, value)) if isinstance(value, list) else str(value)
                assert text == golden[key], key


def test_json_has_these_keys_and_actions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHOW, "1f1b", "--ranks", "2", "--microbatches", "1", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == [
        *("schedule", "ranks", "microbatches", "chunks", "makespan", "ideal", "bubble", "bubble_fraction"),
        *("longest_rank_span", "peak_until_backward", "peak_until_weight", "actions"),
    ]
    assert shown["actions"] == [["0F0", "0BW0"], ["1F0", "1BW0"]]


def test_costs_transfer_and_model_change_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    def makespan(*options: str) -> float:
        assert main([*SHOW, "1f1b", "--ranks", "2", "--microbatches", "1", "--format", "json", *options]) == 0
        return json.loads(capsys.readouterr().out)["makespan"]

    assert makespan() == 6.0
    assert makespan("--cost", "F=2", "--cost", "B=3", "--cost", "W=0.5") == 11.0
    assert makespan("--transfer", "0.25") == 6.5
    # The lowered program sends B before W: F, F, B, then W beside the other rank's B, W.
    assert makespan("--sync", "neighbor") == 5.0
    assert makespan("--sync", "neighbor", "--fuse-backward") == 6.0


def test_text_shows_the_grid_the_figures_and_the_causes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHOW, "zb_h1", *SIZES]) == 0
    text = capsys.readouterr().out
    assert text.startswith("rank 0 |F0F1F2F3......B0W0F4B1W1")
    assert "makespan 27, ideal 24, bubble 3 (11.1% of the makespan), longest rank span 27" in text
    assert text.splitlines()[-4].split() == ["rank", "0", "24", "3", "4", "4"]


def test_all_faults_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    costs = ["--cost", "X=1", "--cost", "F=-1", "--cost", "B=nan", "--cost", "W=much", "--cost", "F"]
    others = ["--transfer", "-2", "--sync", "lockstep", "--transfer-ticks", "3", "--format", "xml"]
    faults = faults_of(capsys, "zb_h3", "--ranks", "0", "--microbatches", "many", *costs, *others)
    for fault in (
        "schedule 'zb_h3' does not exist; did you mean 'zb_h",
        "num_ranks=0 must be at least 1",
        "--microbatches 'many' must be a whole number",
        "--cost 'X=1' must name F, B, W, R, head or embedding and a number, such as F=1.5",
        "--cost 'F' must name F, B, W",
        "--cost W 'much' must be a number",
        "cost F=-1.0 must be at least 1e-09 and at most 1e+09",
        "cost B=nan must be at least",
        "transfer=-2.0 must be at least 0 and at most 1e+09",
        "sync='lockstep' must be one of async, neighbor",
        "transfer_ticks=3 must be 1 or 2",
        "--format 'xml' must be one of text, json, svg, html",
    ):
        assert fault in faults


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
def test_sizes_beyond_all_use_are_refused_at_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.perf_counter()
    said = faults_of(capsys, name, "--ranks", "64", "--microbatches", "1000000000")
    assert "num_microbatches=64 x 1000000000 = 64000000000 must be at most 65536; use at most 1024" in said
    huge = ["--ranks", "1000000000", "--microbatches", "1", "--chunks", "1000"]
    assert "1000000000000 x 1 = 1000000000000 must be" in faults_of(capsys, name, *huge)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--cost F=1 --cost F=2", "--cost F is given twice; keep one"),
        ("--cost F=x --cost F=2", "--cost F is given twice; keep one"),
        ("--cost F=1e308 --cost B=1e308", "cost B=1e+308 must be at least 1e-09 and at most 1e+09"),
        ("--cost F=1e-308 --cost B=1e308 --cost W=1", "cost F=1e-308 must be at least 1e-09"),
        ("--transfer 1e308", "transfer=1e+308 must be at least 0 and at most 1e+09"),
        ("--transfer-ticks 2", "--transfer-ticks is for --sync neighbor; give that too, or leave it out"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = faults_of(capsys, "1f1b", *SIZES, *options.split())
    assert said in faults


def test_fusing_the_backward_changes_async_schedules_that_split_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = []
    for options in ([], ["--fuse-backward"]):
        assert main([*SHOW, "zb_h1", *SIZES, *options]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] != shown[1]


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    faults = faults_of(capsys, "1f1b")
    assert "--ranks is missing" in faults
    assert "--microbatches is missing" in faults


def test_chunks_need_a_schedule_that_has_some(capsys: pytest.CaptureFixture[str]) -> None:
    assert "num_chunks=2 must be 1 for gpipe" in faults_of(capsys, "gpipe", *SIZES, "--chunks", "2")


def test_costs_may_be_given_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHOW, "1f1b", *SIZES, "--cost", "F=1,2,1,1", "--format", "json"]) == 0
    slower = json.loads(capsys.readouterr().out)
    assert slower["ideal"] == 32.0
    said = faults_of(capsys, "1f1b", *SIZES, "--cost", "F=1,2,1", "--cost", "B=1,x", "--cost", "head=1,2")
    for fault in ("3 costs F for 4 stages", "--cost B 'x' must be a number", "--cost head '1,2' must be one"):
        assert fault in said


def test_the_ends_of_the_pipe_may_cost_something(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHOW, "1f1b", *SIZES, "--sync", "neighbor", "--cost", "head=2", "--cost", "F=2"]) == 0
    text = capsys.readouterr().out
    assert "= embedding and head, all ranks together" in text
    assert "- ends" in text


@pytest.mark.parametrize(("value", "backward"), [("true", "0BW1"), ("1", "0BW1"), ("FALSE", "0BW0")])
def test_an_option_of_a_generator_is_passed_on(
    value: str, backward: str, capsys: pytest.CaptureFixture[str]
) -> None:
    option = ["--option", f"reverse_backward={value}"]
    assert main([*SHOW, "gpipe", "--ranks", "1", "--microbatches", "2", *option, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["actions"][0][2] == backward


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("reverse=1", "option 'reverse' does not exist for gpipe, it has reverse_backward; leave it out"),
        ("reverse_backward=2", "reverse_backward=2 must be between 0 and 1 for gpipe"),
        ("reverse_backward=maybe", "--option reverse_backward 'maybe' must be a whole number"),
        ("num_ranks=2", "num_ranks is given by --ranks"),
        ("name=x", "name is given by the name of the schedule"),
        ("reverse_backward", "must be a name and a value, such as reverse_backward=true"),
        ("=1", "must be a name and a value, such as reverse_backward=true"),
    ],
)
def test_options_that_do_not_exist_are_faults(
    option: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in faults_of(capsys, "gpipe", *SIZES, "--option", option)


def test_each_fault_is_a_line_that_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    lines = faults_of(capsys, "1f2b", "--transfer", "-1").splitlines()
    assert len(lines) == 4
    assert all(line.startswith("jaxpipe schedule show: ") for line in lines)


@pytest.mark.parametrize("name", GENERATORS)
def test_every_schedule_is_shown_within_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    costs = ["--cost", "F=1.15", "--cost", "head=0.7", "--transfer", "0.2", "--sync", "neighbor"]
    for color in ("never", "always"):
        assert main([*SHOW, name, *SIZES, *costs, "--color", color]) == 0
        shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
        assert max(map(len, shown.splitlines())) <= 80


def test_colours_are_for_terminals_unless_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def is_in_color(*options: str) -> bool:
        assert main([*SHOW, "zb_h1", *SIZES, *options]) == 0
        return "\x1b[" in capsys.readouterr().out

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert not is_in_color()
    assert is_in_color("--color", "always")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert is_in_color()
    assert not is_in_color("--color", "never")
    assert not is_in_color("-o", str(tmp_path / "grid.txt"))
    assert "\x1b[" not in (tmp_path / "grid.txt").read_text()
    monkeypatch.setenv("TERM", "dumb")
    assert not is_in_color()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_in_color()
    assert is_in_color("--color", "always")
    assert "--color 'red' must be one of auto, always, never" in faults_of(
        capsys, "zb_h1", *SIZES, "--color", "red"
    )


def test_text_on_a_terminals_colours_can_be_read() -> None:
    assert set(SHADES) == set(Kind)
    for color in {shade for shades in SHADES.values() for shade in shades}:
        levels = (0, 95, 135, 175, 215, 255)
        red, green, blue = ((color - 16) // 36, (color - 16) // 6 % 6, (color - 16) % 6)
        background = f"#{levels[red]:02x}{levels[green]:02x}{levels[blue]:02x}"
        assert contrast(background, "#000000") >= 4.5


def test_pictures_of_more_than_a_browser_bears_are_refused_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = time.perf_counter()
    huge = ["zb_h1", "--ranks", "16", "--microbatches", "512", "--format", "svg"]
    said = faults_of(capsys, *huge)
    assert "a picture of 24576 actions must have at most 20000; use fewer microbatches" in said
    assert time.perf_counter() - started < 10


def test_the_program_of_segments_waits_less(capsys: pytest.CaptureFixture[str]) -> None:
    """1F1B in ticks, BW as one action, at unequal costs; with every message its own no rank waits less."""
    command = ["schedule", "show", "1f1b", "--ranks", "8", "--microbatches", "64", "--format", "json"]
    command += ["--cost", "F=1.15", "--cost", "B=1.385", "--cost", "W=1", "--fuse-backward"]

    def makespan(*options: str) -> float:
        assert main([*command, *options]) == 0
        return json.loads(capsys.readouterr().out)["makespan"]

    scan, alone = makespan("--sync", "neighbor", "--program", "scan"), makespan()
    assert makespan("--sync", "neighbor") == scan
    segments = makespan("--sync", "neighbor", "--program", "segments")
    assert alone == pytest.approx(segments)
    assert scan > 1.3 * segments


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--program", "segments"], "--program is for --sync neighbor"),
        (["--sync", "neighbor", "--program", "loops"], "--program 'loops' must be scan or segments"),
    ],
)
def test_a_program_that_is_none_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schedule", "show", "1f1b", "--ranks", "2", "--microbatches", "4", *options]) == 2
    assert said in capsys.readouterr().err
