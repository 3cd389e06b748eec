"""Checkpoints that are not what was written: each kind of damage is found and told, and none is loaded."""

import errno
import json
import shutil
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxpipe.checkpoint import array_files, fingerprint, manifest, step_folders
from jaxpipe.checkpoint.checkpoints import Checkpoints, open_checkpoints
from jaxpipe.checkpoint.manifest import FILE_NAME
from jaxpipe.checkpoint.template import named_leaves
from jaxpipe.errors import CheckpointError, DamagedError, InputError, NotFiniteError


@pytest.fixture
def checkpoints(tmp_path: Path, state) -> Checkpoints:
    """With steps 6 and 8."""
    with open_checkpoints(tmp_path, keep=5) as opened:
        opened.save(6, state, {"data": 60})
        opened.save(8, state, {"data": 80})
        opened.wait()
        yield opened


def data_files(folder: Path) -> list[Path]:
    """The largest first."""
    files = [path for path in (folder / "arrays").rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: -path.stat().st_size)


def flip(path: Path, index: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[index] ^= 1 << bit
    path.write_bytes(content)


def keep_checking(checkpoints: Checkpoints) -> None:
    """As a run does after each step."""
    for _ in range(3000):
        checkpoints.check()
        time.sleep(0.01)


def test_whole_checkpoints_have_no_damage(checkpoints):
    assert checkpoints.find_damage(6) is None
    assert checkpoints.find_damage(8) is None


def test_a_flipped_bit_anywhere_is_found(checkpoints, tmp_path: Path):
    chance = np.random.default_rng(0)
    files = [path for path in (tmp_path / "8").rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        index, bit = chance.integers(path.stat().st_size), chance.integers(8)
        flip(path, index, bit)
        name = path.relative_to(tmp_path / "8").as_posix()
        assert name.removeprefix("arrays/") in checkpoints.find_damage(8)
        flip(path, index, bit)
    assert checkpoints.find_damage(8) is None


def test_a_flipped_bit_that_orbax_reads_without_a_word_is_no_wrong_number_of_ours(tmp_path: Path, state):
    """Should a bit flip after the files were hashed, the values still are not those that were saved."""
    noise = np.random.default_rng(0).normal(size=30_000).astype(np.float32)
    arrays = {"mu": jax.device_put(noise, state["params"]["embedding"].sharding)}
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), arrays)
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(8, arrays, {})
        checkpoints.wait()
        some = noise[7:20].tobytes()
        path = next(path for path in data_files(tmp_path / "8") if some in path.read_bytes())
        flip(path, path.read_bytes().index(some) + 3, bit=4)
        assert array_files.read(tmp_path / "8" / "arrays", like)["mu"][7] != noise[7]
        with pytest.raises(DamagedError, match="the values of mu are not those that were saved"):
            checkpoints.restore(8, like)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("empty", "no manifest.json"),
        ("no manifest", "no manifest.json"),
        ("torn manifest", "torn"),
        ("edited manifest", "was changed after"),
        ("unsealed manifest", "torn"),
        ("file of text", "no manifest.json"),
        ("other step", "of step 6"),
        ("missing file", "is missing"),
        ("truncated", "bytes of"),
        ("empty file", "has 0 bytes of"),
    ],
)
def test_each_kind_of_damage_is_told(checkpoints, tmp_path: Path, kind, words):
    folder = tmp_path / "8"
    text = (folder / FILE_NAME).read_text()
    if kind == "empty":
        shutil.rmtree(folder)
        folder.mkdir()
    elif kind == "no manifest":
        (folder / FILE_NAME).unlink()
    elif kind == "torn manifest":
        (folder / FILE_NAME).write_text(text[: len(text) // 2])
    elif kind == "edited manifest":
        (folder / FILE_NAME).write_text(text.replace('"data": 80', '"data": 81'))
    elif kind == "unsealed manifest":
        content = json.loads(text)
        del content["sha256"]
        (folder / FILE_NAME).write_text(json.dumps(content))
    elif kind == "file of text":
        shutil.rmtree(folder)
        folder.write_text("8")
    elif kind == "other step":
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "6", folder)
    elif kind == "missing file":
        data_files(folder)[0].unlink()
    elif kind == "truncated":
        with data_files(folder)[0].open("r+b") as file:
            file.truncate(100)
    elif kind == "empty file":
        data_files(folder)[0].write_bytes(b"")
    assert words in checkpoints.find_damage(8)
    assert checkpoints.find_damage(6) is None
    assert checkpoints.steps() == (6, 8)


def test_the_shares_of_several_processes_cover_every_file(checkpoints, tmp_path: Path):
    for path in [path for path in (tmp_path / "8" / "arrays").rglob("*") if path.is_file()]:
        flip(path, 0)
        found = [checkpoints.find_damage(8, share=(index, 3)) for index in range(3)]
        assert sum(text is not None for text in found) == 1
        flip(path, 0)


def test_what_is_damaged_is_set_aside_under_a_name_of_its_own(checkpoints, tmp_path: Path, state):
    (tmp_path / "8" / FILE_NAME).unlink()
    assert checkpoints.latest() == 6
    assert checkpoints.set_aside(8) == tmp_path / "8.damaged"
    checkpoints.save(8, state, {})
    checkpoints.wait()
    assert checkpoints.set_aside(8) == tmp_path / "8.damaged-2"
    assert checkpoints.steps() == (6,)


def test_a_save_sets_aside_what_is_in_its_way_and_deletes_nothing(checkpoints, tmp_path: Path, state):
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "precious").write_text("not ours")
    checkpoints.save(9, state, {})
    checkpoints.wait()
    assert checkpoints.find_damage(9) is None
    assert (tmp_path / "9.damaged" / "precious").read_text() == "not ours"


def test_orbax_itself_would_cast_without_a_word(checkpoints, tmp_path: Path, state, like):
    """Why dtypes are compared before anything is read (test_checkpoints.py has the refusals)."""
    wanted = named_leaves(like(state))
    leaf = wanted["params.embedding"]
    wanted["params.embedding"] = jax.ShapeDtypeStruct(leaf.shape, np.int32, sharding=leaf.sharding)
    assert array_files.read(tmp_path / "8" / "arrays", wanted)["params.embedding"].dtype == np.int32


def test_values_that_are_not_finite_are_not_saved(checkpoints, tmp_path: Path, state):
    norm = np.array(state["params"]["layers"]["norm"])
    norm[3, 2] = np.nan
    norm[3, 4] = np.inf
    query = state["params"]["layers"]["norm"]
    state["params"]["layers"]["norm"] = jax.device_put(norm, query.sharding)
    with pytest.raises(NotFiniteError, match=r"step 9: .*: 2 of 48 in params\.layers\.norm; it is not"):
        checkpoints.save(9, state, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["6", "8"]


def test_a_save_that_fails_in_the_background_is_told_at_the_next_step(
    checkpoints, tmp_path: Path, state, monkeypatch
):
    def refuse(directory: Path, step: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(step_folders, "publish", refuse)
        checkpoints.save(9, state, {})
        with pytest.raises(CheckpointError, match=r"9 could not be written: .*No space.*resume from step 8"):
            keep_checking(checkpoints)
    assert checkpoints.latest() == 8
    checkpoints.save(9, state, {})
    checkpoints.wait()
    assert checkpoints.latest() == 9


def test_training_goes_on_while_files_are_written(checkpoints, state, monkeypatch):
    """The save cannot end before the test says so, and a step is taken meanwhile."""
    may_finish = threading.Event()
    hash_files = manifest.hash_files

    def wait_and_hash(folder: Path):
        assert may_finish.wait(60)
        return hash_files(folder)

    monkeypatch.setattr(manifest, "hash_files", wait_and_hash)
    checkpoints.save(9, state, {})
    jax.block_until_ready(jax.jit(lambda x: jax.tree.map(lambda leaf: leaf * 2, x))(state))
    checkpoints.check()
    assert checkpoints.latest() == 8
    may_finish.set()
    checkpoints.wait()
    assert checkpoints.latest() == 9


def test_the_best_one_outlives_newer_ones_until_a_better_comes(tmp_path: Path, state):
    with open_checkpoints(tmp_path, keep=1, keeps_best=True) as checkpoints:
        kept = []
        for step, loss in enumerate([None, 3.0, 2.0, 2.5, None, 2.0, 1.5, 1.6]):
            checkpoints.save(step, state, {}, validation_loss=loss)
            checkpoints.wait()
            kept.append(checkpoints.steps())
    assert kept == [(0,), (1,), (2,), (2, 3), (2, 4), (2, 5), (6,), (6, 7)]


def test_a_disk_without_room_is_told_before_anything_is_written(
    checkpoints, tmp_path: Path, state, monkeypatch
):
    usage = shutil.disk_usage(tmp_path)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(
        CheckpointError, match=r"9 could not be written: the disk has no room: .* of 1\.953 KiB .*; free"
    ):
        checkpoints.save(9, state, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["6", "8"]


def test_a_save_that_fails_gives_its_space_back(checkpoints, tmp_path: Path, state, monkeypatch):
    def refuse(folder: Path, manifest: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(manifest, "write_manifest", refuse)
    checkpoints.save(9, state, {})
    with pytest.raises(CheckpointError, match="resume from step 8"):
        checkpoints.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["6", "8"]


def test_a_manifest_of_another_format_is_refused_and_not_taken_for_damage(checkpoints, monkeypatch):
    monkeypatch.setattr(manifest, "_FORMAT", 2)
    with pytest.raises(InputError, match="has format 1, but this jaxpipe reads 2"):
        checkpoints.find_damage(8)


def test_what_only_cannot_be_read_is_not_taken_for_damage(checkpoints, monkeypatch):
    def refuse(path: Path, *, sync: bool) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(manifest, "_hash_file", refuse)
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
        checkpoints.find_damage(8)


def test_a_sector_that_the_disk_has_lost_is_damage(checkpoints, monkeypatch):
    def refuse(path: Path, *, sync: bool) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(manifest, "_hash_file", refuse)
    assert "cannot be read (Input/output error)" in checkpoints.find_damage(8)


def test_a_directory_that_vanishes_is_one_sentence(checkpoints, tmp_path: Path, state):
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    try:
        with pytest.raises(CheckpointError, match=f"{tmp_path} cannot be read: No such file"):
            checkpoints.save(9, state, {})
    finally:
        tmp_path.with_name("elsewhere").rename(tmp_path)


def test_archived_checkpoints_behind_links_are_unlinked_and_not_deleted(tmp_path: Path, state):
    archive = tmp_path / "archive"
    archive.mkdir()
    with open_checkpoints(tmp_path / "checkpoints", keep=2) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state, {})
            checkpoints.wait()
        (tmp_path / "checkpoints" / "1").rename(archive / "1")
        (tmp_path / "checkpoints" / "1").symlink_to(archive / "1")
        (tmp_path / "checkpoints" / "30.unfinished").write_text("a file")
        checkpoints.save(3, state, {})
        checkpoints.wait()
        assert sorted(path.name for path in checkpoints.directory.iterdir()) == ["2", "3"]
    assert (archive / "1" / FILE_NAME).exists()


def test_a_link_to_nowhere_is_refused(tmp_path: Path):
    (tmp_path / "checkpoints").symlink_to(tmp_path / "not mounted")
    with pytest.raises(InputError, match="not mounted, which is not there"):
        open_checkpoints(tmp_path / "checkpoints", keep=1)
    assert not (tmp_path / "not mounted").exists()


def test_what_a_save_compiles_can_be_compiled_before(tmp_path: Path, state, like, monkeypatch):
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.compile_for(like(state))
        monkeypatch.setattr(fingerprint, "_examine", None)
        checkpoints.save(1, state, {})
        checkpoints.wait()
    monkeypatch.undo()
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.restore(1, like(state))


def test_a_loss_that_is_found_later_is_recorded(tmp_path: Path, state):
    with open_checkpoints(tmp_path, keep=1, keeps_best=True) as checkpoints:
        checkpoints.save(1, state, {"loss": None}, validation_loss=None)
        checkpoints.wait()
        checkpoints.add_validation_loss(1, 2.0, {"loss": 2.0})
        checkpoints.save(2, state, {}, validation_loss=3.0)
        checkpoints.wait()
        assert checkpoints.steps() == (1, 2)
        assert checkpoints.read_manifest(1).info == {"loss": 2.0}
        assert checkpoints.find_damage(1) is None


def test_a_checkpoint_is_complete_also_where_older_ones_cannot_be_deleted(
    checkpoints, tmp_path: Path, state, monkeypatch
):
    def refuse(directory: Path, *, keep: int, keeps_best: bool) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(step_folders, "remove_old", refuse)
    checkpoints.save(9, state, {})
    with pytest.raises(CheckpointError, match=r"9 is complete, but an older one cannot be deleted: .*denied"):
        checkpoints.wait()
    assert checkpoints.latest() == 9


def test_an_older_one_that_cannot_be_read_stops_no_save(checkpoints, tmp_path: Path, state):
    (tmp_path / "6" / FILE_NAME).unlink()
    (tmp_path / "6" / FILE_NAME).mkdir()
    checkpoints.save(9, state, {})
    checkpoints.wait()
    assert checkpoints.latest() == 9
    assert checkpoints.steps() == (6, 8, 9)
    with pytest.raises(CheckpointError, match="Is a directory"):
        checkpoints.find_damage(6)


def test_a_loss_that_cannot_be_recorded_is_one_sentence(checkpoints, tmp_path: Path):
    (tmp_path / "8" / f"{FILE_NAME}.unfinished").mkdir()
    with pytest.raises(CheckpointError, match=r"validation loss of .*8 could not be recorded: .*directory"):
        checkpoints.add_validation_loss(8, 1.0, {})
    assert checkpoints.read_manifest(8).validation_loss is None
