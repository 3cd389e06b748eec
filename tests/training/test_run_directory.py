"""A directory belongs to one run and to one living process."""

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpipe.errors import InputError
from jaxpipe.training.run_directory import claim_run_directory, write_config

HOLD = """
import sys
from jaxpipe.errors import InputError
from jaxpipe.training.run_directory import claim_run_directory, write_config

try:
    with claim_run_directory(sys.argv[1], resume=sys.argv[2] == "resume") as run:
        write_config(run, f"owner: {sys.argv[3]}")
        print("claimed", flush=True)
        sys.stdin.readline()
except InputError as error:
    print("refused", error, flush=True)
"""


def start(directory: Path, kind: str, owner: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(directory), kind, str(owner)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def claim_and_release(directory: Path, *, resume: bool) -> None:
    with claim_run_directory(directory, resume=resume):
        pass


def test_a_new_run_gets_its_directory_and_paths(tmp_path: Path):
    with claim_run_directory(tmp_path / "runs" / "x", resume=False) as run:
        write_config(run, "train: {}\n")
    assert run.config.read_text() == "train: {}\n"
    assert run.config == tmp_path / "runs" / "x" / "config.yaml"
    assert run.metrics == tmp_path / "runs" / "x" / "metrics.jsonl"
    assert run.checkpoints == tmp_path / "runs" / "x" / "checkpoints"
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "config.yaml"]


def test_what_an_import_left_that_was_broken_off_gives_way_to_a_new_run(tmp_path: Path):
    for name in ("checkpoints/0", "tokenizer"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "imported.txt").write_text("hf")
    claim_and_release(tmp_path, resume=False)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("held", ["config.yaml", "metrics.jsonl", "samples.jsonl"])
def test_an_imported_run_that_has_begun_is_never_taken_for_a_broken_off_import(tmp_path: Path, held: str):
    (tmp_path / "checkpoints" / "0").mkdir(parents=True)
    for name in ("imported.txt", held):
        (tmp_path / name).write_text("")
    with pytest.raises(InputError, match="must hold no other run"):
        claim_and_release(tmp_path, resume=False)
    assert (tmp_path / "checkpoints" / "0").exists()


def test_of_runs_started_at_once_one_gets_the_directory(tmp_path: Path):
    runs = [start(tmp_path / "x", "new", owner) for owner in range(4)]
    answers = [run.stdout.readline().split()[0] for run in runs]
    for run in runs:
        run.communicate("\n")
    assert sorted(answers) == ["claimed", "refused", "refused", "refused"]
    assert (tmp_path / "x" / "config.yaml").read_text() == f"owner: {answers.index('claimed')}"


def test_a_run_that_still_goes_on_cannot_be_resumed_and_a_killed_one_can(tmp_path: Path):
    with start(tmp_path, "new") as run:
        assert run.stdout.readline() == "claimed\n"
        with pytest.raises(InputError, match=f"process {run.pid} works there"):
            claim_and_release(tmp_path, resume=True)
        run.kill()
    with claim_run_directory(tmp_path, resume=True) as resumed:
        assert resumed.config.read_text() == "owner: 0"


def test_a_directory_is_free_when_its_run_has_ended(tmp_path: Path):
    with claim_run_directory(tmp_path, resume=False) as run:
        write_config(run, "")
    with claim_run_directory(tmp_path, resume=True), pytest.raises(InputError, match="works there"):
        claim_and_release(tmp_path, resume=True)


@pytest.mark.parametrize("held", ["config.yaml", "metrics.jsonl", "samples.jsonl", "checkpoints"])
def test_a_new_run_never_overwrites_another(tmp_path: Path, held: str):
    (tmp_path / held).mkdir()
    with pytest.raises(InputError, match=f"must hold no other run, but it has {held}"):
        claim_and_release(tmp_path, resume=False)
    assert [path.name for path in tmp_path.iterdir()] == [held]


def test_a_run_that_came_and_went_before_the_lock_is_not_overwritten(tmp_path: Path, monkeypatch):
    def lock_too_late(*_: object) -> None:
        (tmp_path / "config.yaml").write_text("of the other run")

    monkeypatch.setattr("jaxpipe.training.run_directory.fcntl.flock", lock_too_late)
    with pytest.raises(InputError, match="must hold no other run"):
        claim_and_release(tmp_path, resume=False)
    assert (tmp_path / "config.yaml").read_text() == "of the other run"


def test_other_files_do_not_stop_a_new_run(tmp_path: Path):
    (tmp_path / "log.txt").write_text("started\n")
    with claim_run_directory(tmp_path, resume=False) as run:
        write_config(run, "")
    assert (tmp_path / "log.txt").read_text() == "started\n"


def test_a_run_that_ended_before_it_began_leaves_the_directory_free(tmp_path: Path):
    for _ in range(2):
        claim_and_release(tmp_path / "x", resume=False)


@pytest.mark.parametrize("name", ["", "missing"])
def test_resuming_nothing_is_refused_and_leaves_no_trace(tmp_path: Path, name: str):
    with pytest.raises(InputError, match=r"must hold the run to resume, but it has no config\.yaml"):
        claim_and_release(tmp_path / name, resume=True)
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_directory(tmp_path: Path):
    (tmp_path / "x").write_text("")
    with pytest.raises(InputError, match="must be a directory, but it is a file"):
        claim_and_release(tmp_path / "x", resume=False)


def test_writing_the_config_again_replaces_it_whole(tmp_path: Path):
    with claim_run_directory(tmp_path, resume=False) as run:
        write_config(run, "a long text of the first run\n")
        write_config(run, "short\n")
    assert run.config.read_text() == "short\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "config.yaml"]


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch):
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(InputError, match="must lie where files can be locked, but: Function not implemented"),
        claim_run_directory(tmp_path / "run", resume=False),
    ):
        pass
