"""Event files as TensorBoard itself reads them: every step once, whatever was in the folder before."""

import math
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.curves.event_file import add_record, open_event_file

pytest.importorskip("tensorboardX")
event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

KILLED = [{"step": step, "loss": 5.0 - step / 7, "tokens": 64} for step in range(1, 8)]
RESUMED = [{"step": step, "loss": 5.0 - step / 7, "tokens": 64} for step in range(4, 12)]


def scalars(directory: Path) -> dict[str, list]:
    """Everything TensorBoard finds, without leaving out points."""
    accumulator = event_accumulator.EventAccumulator(str(directory), {"scalars": 0}).Reload()
    return {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}


def write(directory: Path, before: list, then: list) -> None:
    with open_event_file(directory, before) as file:
        for record in then:
            add_record(file, record)


def test_a_number_is_its_fp32_and_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    records = [
        {"step": 1, "loss": 0.1, "grad_norm": "NaN", "learning_rate": 1e-30, "note": "text"},
        {"step": 1, "eval_loss": 2.5},
        {"step": 1, "final": True, "params_sha256": "00"},
    ]
    write(tmp_path, [], records)
    found = scalars(tmp_path)
    assert {tag: [point.step for point in points] for tag, points in found.items()} == {
        "loss": [1],
        "grad_norm": [1],
        "learning_rate": [1],
        "eval_loss": [1],
    }
    assert found["loss"][0].value == np.float32(0.1)
    assert found["learning_rate"][0].value == np.float32(1e-30)
    assert math.isnan(found["grad_norm"][0].value)


def test_a_run_that_goes_on_repeats_and_loses_no_step_and_keeps_the_times(tmp_path: Path) -> None:
    write(tmp_path, [], KILLED)
    (former,) = tmp_path.iterdir()
    times = {point.step: point.wall_time for point in scalars(tmp_path)["loss"]}
    former.write_bytes(former.read_bytes()[:-150])  # torn, as a kill leaves it
    write(tmp_path, KILLED[:3], RESUMED)
    assert not former.exists()
    points = scalars(tmp_path)["loss"]
    assert [point.step for point in points] == list(range(1, 12))
    assert [point.value for point in points] == [np.float32(5.0 - step / 7) for step in range(1, 12)]
    assert [point.wall_time for point in points[:3]] == [times[step] for step in (1, 2, 3)]


def test_what_a_kill_before_the_tidying_leaves_counts_once(tmp_path: Path) -> None:
    """The new file is there, and the old one still."""
    write(tmp_path, [], KILLED)
    (former,) = tmp_path.iterdir()
    content = former.read_bytes()
    write(tmp_path, KILLED[:3], RESUMED)
    former.write_bytes(content)
    assert [point.step for point in scalars(tmp_path)["loss"]] == list(range(1, 12))


def test_a_broken_file_costs_no_more_than_the_times_in_it(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1.elsewhere").write_bytes(b"\x00" * 100 + b"\xff" * 100)
    write(tmp_path, KILLED, [])
    assert [point.step for point in scalars(tmp_path)["tokens"]] == list(range(1, 8))


def test_records_reach_the_disk_while_the_run_goes_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("jaxpipe.curves.event_file._FLUSH_EVERY", 0.0)
    with open_event_file(tmp_path, KILLED) as file:
        add_record(file, {"step": 8, "loss": 1.0})
        assert [point.step for point in scalars(tmp_path)["loss"]] == list(range(1, 9))
