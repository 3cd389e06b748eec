"""``jaxpipe explain``: tables, the two pictures, and what it refuses."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from jaxpipe.cli import main
from jaxpipe.planning.costs_file import to_text as costs_text
from jaxpipe.planning.explanation import explain
from jaxpipe.planning.tick_file import read_ticks, to_text
from tests.pictures.reading import parse
from tests.planning.made_traces import costs_for, make_trace

TRACE = make_trace("zb_h1", 3, 4, jitter=0.5)


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """Of a run that timed steps 4 and 10."""
    (tmp_path / "ticks-4.json").write_text("{}")
    (tmp_path / "ticks-10.json").write_text(to_text(TRACE))
    return tmp_path


def test_the_tables_say_what_was_predicted_and_what_was_measured(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(run_directory)]) == 0
    said = capsys.readouterr().out
    assert "with marks, 1.176 times as long" in said  # 1.0 against the median of 0.8 and 0.9
    for line in ("makespan", "bubble of the makespan", "idle: dependency", "embedding and head", "rank 2"):
        assert line in said
    table = said.split("as shares of it.")[1].split("\n\n")[0].splitlines()[2:]
    columns = [float(line.split("%")[1]) for line in table]
    assert sum(columns) == pytest.approx(100, abs=0.6)  # of twelve rounded shares


def test_the_page_has_both_timelines_and_each_idle_stretch_its_cause(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = run_directory / "explained.html"
    assert main(["explain", str(run_directory), "-o", str(page)]) == 0
    capsys.readouterr()
    root = parse(page.read_text())
    groups = [group.get("class") or "" for group in root.iter("g") if group.find("title") is not None]
    assert sum(css.startswith("box ") for css in groups) == 2 * sum(map(len, TRACE.schedule.orders))
    causes = {css.split()[1] for css in groups if css.startswith("idle ")}
    assert {"dependency", "transfer", "overhead", "drain"} <= causes
    titles = [title.text or "" for title in root.iter("title")]
    assert any("is idle: imbalance" in title or "is idle: neighbor" in title for title in titles)
    text = page.read_text()
    assert "measured" in text
    assert "predicted, at the medians of this step" in text


def test_the_trace_has_both_as_processes_of_their_own(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_directory / "explained.json"
    assert main(["explain", str(run_directory), "--trace", str(file)]) == 0
    capsys.readouterr()
    events = json.loads(file.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {1: "predicted, at the medians of this step", 2: "measured"}
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            start, lasts = (round(1000 * event[key]) for key in ("ts", "dur"))
            tracks.setdefault((event["pid"], event["tid"]), []).append((start, start + lasts))
    assert set(tracks) == {(pid, tid) for pid in (1, 2) for tid in (1, 2, 3)}
    for spans in tracks.values():
        assert all(one[1] <= other[0] for one, other in pairwise(sorted(spans)))
    explanation = explain(read_ticks(run_directory / "ticks-10.json"))
    makespans = {1: explanation.predicted.makespan, 2: explanation.measured.makespan}
    for (pid, _), spans in tracks.items():
        assert sum(end - start for start, end in spans) == round(makespans[pid] * 1e9), "work and idle time"
    causes = {(event["pid"], event["name"]) for event in events if event.get("cat") == "idle"}
    assert {"idle: dependency", "idle: transfer", "idle: overhead", "idle: drain"} <= {
        name for pid, name in causes if pid == 2
    }
    assert {"idle: dependency", "idle: transfer"} <= {name for pid, name in causes if pid == 1}
    starts, ends = ({event["id"] for event in events if event["ph"] == phase} for phase in "sf")
    assert starts == ends
    assert len(starts) == sum(event["ph"] == "s" for event in events), (
        "an arrow of one process ends in the other"
    )


def test_a_step_that_marks_made_quicker_is_told_to_be_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ticks-4.json"
    for plain, is_noise in ((1.25, True), (1.0, False), (0.8, False)):
        file.write_text(to_text(replace(TRACE, plain_seconds=(plain,))))
        assert main(["explain", str(file)]) == 0
        first = capsys.readouterr().out.split("\n\n")[0]
        assert ("noise: the machine was busy" in first) == is_noise


def test_costs_of_another_model_are_refused_by_the_keys_that_differ(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_directory / "costs.json"
    model = {"hidden_size": 16, "vocab_size": 99}
    file.write_text(costs_text(costs_for(TRACE, model=model, compute_dtype="bfloat16")))
    assert main(["explain", str(run_directory), "--costs", str(file)]) == 2
    said = capsys.readouterr().err
    assert "costs are of a model of hidden_size=16, but here it is 8; " in said
    assert "costs are of a model of vocab_size=99, but here it is None; " in said
    assert "costs are of compute_dtype=bfloat16, but here it is float32; measure" in said
    assert "{" not in said


def test_costs_of_a_file_are_predicted_with(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run_directory / "costs.json"
    file.write_text(costs_text(costs_for(TRACE)))
    assert main(["explain", str(run_directory), "--costs", str(file)]) == 0
    assert "predicted at the file of costs" in capsys.readouterr().out
    file.write_text(costs_text(costs_for(TRACE, tp=2)))
    assert main(["explain", str(run_directory), "--costs", str(file)]) == 2
    assert "costs are of tp=2, but here it is 1; measure" in capsys.readouterr().err


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = str(tmp_path / "none.json")
    where = ["-o", str(tmp_path), "--trace", str(tmp_path / "no" / "x.json")]
    assert main(["explain", str(tmp_path), "--costs", costs, *where]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"jaxpipe explain: -o '{tmp_path}' is a folder; name a file in it",
        f"jaxpipe explain: --trace '{tmp_path}/no/x.json' must lie in a folder that exists; "
        f"make '{tmp_path}/no' first",
        f"jaxpipe explain: '{tmp_path}' holds no ticks-<step>.json; "
        "`train.py CONFIG --run.trace_step 4` writes one into its run.dir",
        f"jaxpipe explain: --costs {costs}: cannot be read: No such file or directory",
    ]


@pytest.mark.parametrize("name", ["missing.json", "x\0y", "n" * 300])
def test_a_file_that_is_not_there_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(tmp_path / name)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_it_loads_no_jax() -> None:
    program = "import sys, jaxpipe.cli.explain; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_one_file_for_both_pictures_is_refused(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(run_directory / "explained")
    assert main(["explain", str(run_directory), "-o", file, "--trace", file]) == 2
    assert "name two files" in capsys.readouterr().err
