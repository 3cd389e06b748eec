"""Errors of writing become sentences; /dev/full is a disk without room."""

import errno
import os

import pytest

from jaxpipe.errors import CheckpointError, InputError, StorageError
from jaxpipe.training.atomic_write import write_text_atomically
from jaxpipe.training.metrics import open_metrics, write_metrics
from jaxpipe.training.stopping.endings import Ending, ending_of
from jaxpipe.training.storage import REMEDY, flushed, storing


def test_metrics_on_a_full_disk_end_in_one_sentence_also_when_the_file_is_closed(tmp_path):
    """What could not be written stays in Python's buffer, and closing tries it once more."""

    def write() -> None:
        with open_metrics(tmp_path / "metrics.jsonl") as file:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, file.fileno())
            os.close(full)
            write_metrics(file, {"step": 1})

    with pytest.raises(
        StorageError, match=rf"metrics\.jsonl must be written, but: No space left .*; {REMEDY}$"
    ):
        write()


def test_a_file_that_cannot_be_replaced_stays_and_leaves_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    write_text_atomically(path, "old")

    def is_full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", is_full)
    with pytest.raises(StorageError, match=r"config\.yaml must be written, but: No space left"):
        write_text_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_told_already_is_not_told_again():
    with pytest.raises(CheckpointError, match=r"^step 3$"), storing("metrics.jsonl"):
        raise CheckpointError("step 3")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError("use 8"), 2, "use 8"),
        (CheckpointError("step 3 could not be saved"), 1, "step 3 could not be saved"),
        (OSError(errno.ENOSPC, "No space left on device", "a.txt"), 1, "a.txt could not be read or written"),
        (OSError(errno.EIO, "Input/output error"), 1, "a file could not be read or written: Input/output"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, "nobody reads it any more"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_that_are_not_ours_have_a_code_and_a_sentence(error, code, words):
    ending = ending_of(error)
    assert ending is not None
    assert ending.code == code
    assert words in ending.sentence


@pytest.mark.parametrize(
    "error", [ValueError("shape"), FileNotFoundError(errno.ENOENT, "missing"), SystemExit(1)]
)
def test_all_other_errors_keep_their_traceback(error):
    assert ending_of(error) is None


def test_a_code_survives_only_if_all_that_was_printed_has_arrived(capsys):
    print("here")
    assert [flushed(0), flushed(2)] == [0, 2]


def test_a_signal_ends_several_processes_with_its_code() -> None:
    """As where SIGTERM reaches one of those that import weights."""
    assert ending_of(SystemExit(143)) == Ending(143, "")
