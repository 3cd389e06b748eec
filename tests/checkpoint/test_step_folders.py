"""What counts as a checkpoint, and which ones stay."""

import json
from pathlib import Path

import pytest

from jaxpipe.checkpoint import open_checkpoints
from jaxpipe.checkpoint.step_folders import COMMIT_METADATA, complete_steps

SMALL = 4


@pytest.fixture
def arrays(state):
    return state["params"]["layers"]


def test_an_empty_directory_has_no_latest(tmp_path: Path):
    with open_checkpoints(tmp_path / "new" / "checkpoints", keep=1) as checkpoints:
        assert checkpoints.latest() is None


def uncommitted(folder: Path, kind: str) -> None:
    folder.mkdir()
    if kind == "torn":
        (folder / COMMIT_METADATA).write_text('{"init_timest')
    if kind == "uncommitted":
        (folder / COMMIT_METADATA).write_text(json.dumps({"commit_timestamp_nsecs": None}))


@pytest.mark.parametrize("kind", ["empty", "torn", "uncommitted"])
def test_a_folder_without_commit_is_not_the_latest_and_can_be_saved(tmp_path: Path, arrays, kind):
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(3, arrays, {})
        checkpoints.wait()
        uncommitted(tmp_path / "8", kind)
        assert checkpoints.latest() == 3
        checkpoints.save(5, arrays, {})
        checkpoints.wait()
        assert checkpoints.latest() == 5
        checkpoints.save(8, arrays, {"mine": True})
        checkpoints.wait()
        assert checkpoints.latest() == 8
        assert checkpoints.read_info(8) == {"mine": True}


def test_only_plain_numbers_are_steps(tmp_path: Path, arrays):
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(3, arrays, {})
    for name in ("007", "best", "9.copy"):
        (tmp_path / "3").rename(tmp_path / name)
        assert complete_steps(tmp_path) == ()
        (tmp_path / name).rename(tmp_path / "3")
    (tmp_path / "4").write_text("a file")
    assert complete_steps(tmp_path) == (3,)


def test_leftovers_of_a_killed_run_do_not_stop_a_save(tmp_path: Path, arrays):
    for name in ("4.orbax-checkpoint-tmp", "4.orbax-checkpoint-tmp-0", "2.orbax-checkpoint-tmp-old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "arrays").write_text("half of it")
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        assert checkpoints.latest() is None
        checkpoints.save(4, arrays, {})
    assert [path.name for path in tmp_path.iterdir()] == ["4"]


def test_the_newest_are_kept_in_the_order_of_numbers(tmp_path: Path, arrays):
    with open_checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (9, 10, 100):
            checkpoints.save(step, arrays, {})
    assert complete_steps(tmp_path) == (10, 100)


def test_keeping_fewer_after_a_restart_deletes_the_oldest(tmp_path: Path, arrays):
    with open_checkpoints(tmp_path, keep=5) as checkpoints:
        for step in range(SMALL):
            checkpoints.save(step, arrays, {})
    assert complete_steps(tmp_path) == (0, 1, 2, 3)
    with open_checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest() == 3
        assert complete_steps(tmp_path) == (0, 1, 2, 3)
        checkpoints.save(SMALL, arrays, {})
    assert complete_steps(tmp_path) == (3, 4)


def test_keeping_none_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="keep=0 must be at least 1"):
        open_checkpoints(tmp_path, keep=0)
