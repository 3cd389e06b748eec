"""One JSON object a line, and each step once, however often the run was interrupted."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.errors import InputError
from jaxpipe.training.metrics import open_metrics, write_metrics


def records(path: Path) -> list[dict[str, object]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_each_record_is_one_line_that_gives_the_same_floats_back(tmp_path: Path):
    written = [
        {"step": 1, "loss": float(np.float32(5.6)), "learning_rate": 1e-45, "tokens": 2**60},
        {"step": 1, "eval_loss": 0.1 + 0.2, "note": "two\nlines"},
        {"final": True, "step": 1, "params_sha256": "00"},
    ]
    with open_metrics(tmp_path / "metrics.jsonl") as file:
        for record in written:
            write_metrics(file, record)
    assert records(tmp_path / "metrics.jsonl") == written


def test_what_is_not_finite_is_written_as_a_text_that_float_reads(tmp_path: Path):
    values = {"loss": math.nan, "grad_norm": math.inf, "low": -math.inf, "numpy": np.float64("nan")}
    with open_metrics(tmp_path / "metrics.jsonl") as file:
        write_metrics(file, {"step": 1, **values})
    (line,) = records(tmp_path / "metrics.jsonl")
    assert line == {"step": 1, "loss": "NaN", "grad_norm": "Infinity", "low": "-Infinity", "numpy": "NaN"}
    for name, value in values.items():
        np.testing.assert_equal(float(str(line[name])), value)


def test_a_killed_process_leaves_every_line_it_wrote(tmp_path: Path):
    program = (
        "import os, signal, sys\n"
        "from jaxpipe.training.metrics import open_metrics, write_metrics\n"
        "with open_metrics(sys.argv[1]) as file:\n"
        "    for step in range(100):\n"
        "        write_metrics(file, {'step': step})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "metrics.jsonl"
    process = subprocess.run([sys.executable, "-c", program, path], check=False)
    assert process.returncode == -9
    assert [record["step"] for record in records(path)] == list(range(100))


@pytest.mark.parametrize("torn", ["", '{"step": 3, "lo', '{"step": 2', "{"])
def test_resuming_drops_later_steps_and_a_torn_last_line(tmp_path: Path, torn: str):
    path = tmp_path / "metrics.jsonl"
    kept = ['{"step": 1, "loss": 1.5}', '{"step": 2, "loss": 1.25}', '{"step": 2, "eval_loss": 2.0}']
    path.write_text("\n".join([*kept, '{"step": 3, "loss": 1.0}', '{"step": 10, "loss": 1.0}', torn]))
    with open_metrics(path, resume_step=2) as file:
        write_metrics(file, {"step": 3, "loss": 0.5})
    assert path.read_text().splitlines() == [*kept, '{"step": 3, "loss": 0.5}']


def test_resuming_keeps_a_last_line_that_lacks_nothing_but_its_end(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}')
    with open_metrics(path, resume_step=2) as file:
        write_metrics(file, {"step": 3})
    assert [record["step"] for record in records(path)] == [1, 2, 3]


def test_a_finished_run_that_goes_on_has_one_final_line(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2}\n{"final": true, "step": 2, "params_sha256": "00"}\n')
    with open_metrics(path, resume_step=2) as file:
        write_metrics(file, {"final": True, "step": 2, "params_sha256": "11"})
    assert records(path) == [{"step": 2}, {"final": True, "step": 2, "params_sha256": "11"}]


def test_resuming_twice_changes_nothing_more(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n')
    for _ in range(2):
        with open_metrics(path, resume_step=2):
            pass
        assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_resuming_without_a_file_begins_one(tmp_path: Path):
    with open_metrics(tmp_path / "metrics.jsonl", resume_step=2) as file:
        write_metrics(file, {"step": 3})
    assert records(tmp_path / "metrics.jsonl") == [{"step": 3}]


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"loss": 1.0}', ""])
def test_a_bad_line_in_the_middle_is_named_and_nothing_is_changed(tmp_path: Path, line: str):
    path = tmp_path / "metrics.jsonl"
    text = f'{{"step": 1}}\n{line}\n{{"step": 2}}\n'
    path.write_text(text)
    with pytest.raises(InputError, match="line 2 is"), open_metrics(path, resume_step=2):
        pass
    assert path.read_text() == text


def test_a_new_run_does_not_overwrite_metrics(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(FileExistsError), open_metrics(tmp_path / "metrics.jsonl"):
        pass
    assert records(tmp_path / "metrics.jsonl") == [{"step": 1}]


def test_an_evaluation_that_does_not_count_as_done_is_dropped(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    lines = ['{"step": 2, "eval_loss": 3.0}', '{"step": 4, "loss": 2.0}', '{"step": 4, "eval_loss": 2.5}']
    path.write_text("\n".join(lines) + "\n")
    with open_metrics(path, resume_step=4, is_evaluated=False):
        pass
    assert path.read_text().splitlines() == lines[:2]
