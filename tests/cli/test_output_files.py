"""A file that cannot be written is told before the work, by the option that named it; nothing is lost."""

import os
from pathlib import Path

import pytest

from jaxpipe.cli import main
from jaxpipe.cli.faults import RefusedError
from jaxpipe.cli.output import find_file_faults, write, write_or_show

PLAN = ("plan", "--model", "configs/tiny.yaml", "--devices", "1", "--memory", "many")
NOBODYS = Path("/proc")
"""A folder in which even root cannot make a file, whatever its permissions say."""


@pytest.mark.skipif(not (NOBODYS / "self").exists(), reason="there is no such folder here")
@pytest.mark.parametrize(
    ("words", "option", "file", "other"),
    [
        (PLAN, "-o", "x.txt", "--memory"),
        (PLAN, "--picture", "x.svg", "--memory"),
        (("profile", "--rounds", "many"), "-o", "x.json", "--rounds"),
        (("explain", "nowhere"), "-o", "x.html", "nowhere"),
        (("explain", "nowhere"), "--trace", "x.json", "nowhere"),
        (("schedule", "show", "none", "--ranks", "2", "--microbatches", "2"), "-o", "x.svg", "none"),
    ],
)
def test_a_folder_that_takes_no_file_is_a_fault_among_the_others(
    words: tuple[str, ...], option: str, file: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, option, str(NOBODYS / file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f": {option} '{NOBODYS / file}' cannot be written: " in captured.err
    assert other in captured.err


def test_trying_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("old")
    dangling = tmp_path / "link.json"
    dangling.symlink_to(tmp_path / "no" / "x.json")
    assert find_file_faults(str(tmp_path / "new.json")) == []
    assert find_file_faults(str(old)) == []
    assert "cannot be written" in find_file_faults(str(dangling))[0]
    assert sorted(tmp_path.iterdir()) == [dangling, old]
    assert old.read_text() == "old"


def test_a_pipe_is_not_tried_but_written_to(tmp_path: Path) -> None:
    """Opening one that nobody reads would wait for ever; nor does its folder have to take files."""
    pipe = tmp_path / "pipe.svg"
    os.mkfifo(pipe)
    assert find_file_faults(str(pipe)) == []
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write("drawn", str(pipe))
    assert os.read(reader, 10) == b"drawn"
    os.close(reader)


def test_what_took_long_to_find_is_shown_where_it_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RefusedError, match=r"-o .* cannot be written"):
        write_or_show("found\n", str(tmp_path / "lost" / "x.json"))
    assert capsys.readouterr().out == "found\n"
