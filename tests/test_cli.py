"""The command: figures, faults, and that it stays light."""

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxpipe.cli import main

GOLDENS = Path(__file__).parent / "schedules" / "goldens.csv"
SHOW = ["schedule", "show"]
SIZES = ["--ranks", "4", "--microbatches", "8"]

LIGHT = """
import sys
from jaxpipe.cli import main
main(["schedule", "show", "zb_h1", "--ranks", "8", "--microbatches", "64"])
heavy = {"jax", "jaxlib", "numpy", "flax", "rich"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else 0)
"""


def faults_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*SHOW, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_json_has_the_published_figures(capsys: pytest.CaptureFixture[str]) -> None:
    for golden in csv.DictReader(GOLDENS.read_text().splitlines()):
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


def test_list_names_every_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["gpipe", "1f1b", "zb_h1"]


def test_all_faults_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    costs = ["--cost", "X=1", "--cost", "F=-1", "--cost", "B=nan", "--cost", "W=much", "--cost", "F"]
    others = ["--transfer", "-2", "--sync", "lockstep", "--transfer-ticks", "3", "--format", "xml"]
    faults = faults_of(capsys, "zb_h3", "--ranks", "0", "--microbatches", "many", *costs, *others)
    for fault in (
        "schedule 'zb_h3' does not exist; did you mean 'zb_h1'? there are gpipe, 1f1b, zb_h1",
        "num_ranks=0 must be at least 1",
        "--microbatches 'many' must be a whole number",
        "--cost 'X=1' must name F, B or W and a number, such as F=1.5",
        "--cost 'F' must name F, B or W",
        "--cost W 'much' must be a number",
        "cost F=-1.0 must be at least 1e-09 and at most 1e+09",
        "cost B=nan must be at least",
        "transfer=-2.0 must be at least 0 and at most 1e+09",
        "sync='lockstep' must be one of async, neighbor",
        "transfer_ticks=3 must be 1 or 2",
        "--format 'xml' must be one of text, json",
    ):
        assert fault in faults


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
def test_sizes_beyond_all_use_are_refused_at_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.perf_counter()
    said = faults_of(capsys, name, "--ranks", "64", "--microbatches", "1000000000")
    assert "num_microbatches=64 x 1000000000 = 64000000000 must be at most 200000; use at most 3125" in said
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


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["schedule"],
        ["train"],
        [*SHOW],
        [*SHOW, "1f1b", "--rank-count", "4"],
        [*SHOW, "1f1b", *SIZES, "--form", "json"],
    ],
)
def test_a_command_that_does_not_exist_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_it_answers_within_a_second_and_never_loads_jax() -> None:
    # One of five: the machine that runs the tests is shared.
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", LIGHT], check=True, stdout=subprocess.DEVNULL)
        if time.perf_counter() - started < 1.0:
            return
    pytest.fail("never answered within a second")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jaxpipe", "schedule", "list"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stdout.startswith("gpipe")


def test_a_reader_that_has_seen_enough_causes_no_traceback() -> None:
    command = (
        f"{sys.executable} -m jaxpipe schedule show gpipe --ranks 8 --microbatches 512 --format json | true"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
