"""What counts as a checkpoint, and which ones stay."""

from pathlib import Path

import pytest

from jaxpipe.checkpoint.checkpoints import open_checkpoints
from jaxpipe.checkpoint.manifest import FILE_NAME
from jaxpipe.checkpoint.step_folders import complete_steps

SMALL = 4


@pytest.fixture
def arrays(state):
    return state["params"]["layers"]


def test_an_empty_directory_has_no_latest(tmp_path: Path):
    with open_checkpoints(tmp_path / "new" / "checkpoints", keep=1) as checkpoints:
        assert checkpoints.latest() is None


@pytest.mark.parametrize("kind", ["empty", "torn"])
def test_a_folder_without_manifest_is_not_the_latest_and_its_step_can_be_saved(tmp_path: Path, arrays, kind):
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(3, arrays, {})
        checkpoints.wait()
        (tmp_path / "8").mkdir()
        if kind == "torn":
            (tmp_path / "8" / FILE_NAME).write_text('{"step": 8, ')
        assert checkpoints.latest() == 3
        checkpoints.save(5, arrays, {})
        checkpoints.wait()
        assert checkpoints.latest() == 5
        checkpoints.save(8, arrays, {"mine": True})
        checkpoints.wait()
        assert checkpoints.latest() == 8
        assert checkpoints.read_manifest(8).info == {"mine": True}


def test_only_plain_numbers_are_steps(tmp_path: Path, arrays):
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(3, arrays, {})
    for name in ("007", "best", "9.copy", "4"):
        (tmp_path / "3").rename(tmp_path / name)
        assert complete_steps(tmp_path) == ()
        (tmp_path / name).rename(tmp_path / "3")
    (tmp_path / "4").write_text("a file")
    assert complete_steps(tmp_path) == (3,)


def test_leftovers_of_a_killed_run_do_not_stop_a_save(tmp_path: Path, arrays):
    for name in ("4.unfinished", "3.unfinished", "2.deleting"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "arrays").write_text("half of it")
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        assert checkpoints.latest() is None
        checkpoints.save(4, arrays, {})
    assert [path.name for path in tmp_path.iterdir()] == ["4"]


def test_what_others_have_put_there_stays(tmp_path: Path, arrays):
    names = ["4.unfinished.txt", "best", "four.deleting", "notes", "8.damaged"]
    for name in names:
        (tmp_path / name).mkdir()
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(4, arrays, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "4"])


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
