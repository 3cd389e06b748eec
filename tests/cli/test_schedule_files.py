"""Schedules from files, and answers into files."""

import json
import os
import stat
from pathlib import Path

import pytest

from jaxpipe.cli import main
from jaxpipe.schedules import GENERATORS, build
from jaxpipe.schedules.csv_text import from_csv, to_csv

SIZES = ["--ranks", "4", "--microbatches", "8"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["schedule", *arguments]) == 0
    return capsys.readouterr().out


def faults_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["schedule", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize("name", GENERATORS)
def test_what_csv_writes_is_the_schedule_and_show_reads_it(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "schedule.csv"
    assert answer(capsys, "csv", name, *SIZES, "-o", str(file)) == ""
    written = from_csv(file.read_text())
    assert written.orders == build(name, num_ranks=4, num_microbatches=8).orders
    by_name = answer(capsys, "show", name, *SIZES, "--format", "json")
    from_file = answer(capsys, "show", str(file), "--format", "json")
    assert json.loads(from_file)["actions"] == json.loads(by_name)["actions"]
    assert json.loads(from_file)["makespan"] == json.loads(by_name)["makespan"]


def test_csv_in_the_form_of_torch(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--ranks", "2", "--microbatches", "1"]
    assert answer(capsys, "csv", "1f1b", *sizes, "--format", "torch") == "0F0,0B0\n1F0,1B0\n"
    assert "--format 'xml' must be one of jaxpipe, torch" in faults_of(
        capsys, "csv", "1f1b", *sizes, "--format", "xml"
    )
    assert "cannot tell 2 pipes apart" in faults_of(capsys, "csv", "dualpipe", *SIZES, "--format", "torch")


def test_every_command_takes_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(to_csv(build("zb_h1", num_ranks=2, num_microbatches=3)))
    assert "mine" in answer(capsys, "compare", str(file), "1f1b", "--ranks", "2", "--microbatches", "3")
    assert json.loads(answer(capsys, "trace", str(file)))["traceEvents"]
    assert answer(capsys, "csv", str(file)).startswith("# jaxpipe schedule mine")
    assert answer(capsys, "show", str(file), "--ranks", "2", "--microbatches", "3")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ranks", "3"], "--ranks 3 must be the 2 of "),
        (["--microbatches", "4"], "--microbatches 4 must be the 3 of "),
        (["--chunks", "2"], "--chunks 2 must be the 1 of "),
        (["--option", "num_pipes=2"], "--option is for schedules by name"),
    ],
)
def test_sizes_must_be_those_of_the_file(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(to_csv(build("zb_h1", num_ranks=2, num_microbatches=3)))
    assert said in faults_of(capsys, "show", str(file), *options)


def test_a_broken_file_is_shown_with_its_faults(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "broken.csv"
    file.write_text("# jaxpipe schedule x\n0F0,0BW0\n1BW0,1F0\n")
    said = faults_of(capsys, "show", str(file))
    assert said.startswith("jaxpipe schedule show: ")
    assert "[1BW0]" in said


def test_what_cannot_be_read_is_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for name, said in (
        ("none.csv", "cannot be read: No such file or directory; name a CSV file or a schedule"),
        ("folder.csv", "this is no regular file; name a CSV file or a schedule"),
        ("binary.csv", "must be text in UTF-8"),
    ):
        lines = faults_of(capsys, "show", str(tmp_path / name)).splitlines()
        assert len(lines) == 1
        assert said in lines[0]


def test_a_file_is_replaced_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text("old")
    assert answer(capsys, "trace", "1f1b", *SIZES, "-o", str(file)) == ""
    assert json.loads(file.read_text())["otherData"]["schedule"] == "1f1b: 4 ranks, 8 microbatches"
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask


def test_a_link_stays_one_and_a_device_is_written_to(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, link = tmp_path / "file.svg", tmp_path / "link.svg"
    link.symlink_to(file)
    answer(capsys, "show", "1f1b", *SIZES, "--format", "svg", "-o", str(link))
    assert link.is_symlink()
    assert file.read_text().startswith("<svg")
    answer(capsys, "show", "1f1b", *SIZES, "-o", os.devnull)
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("", "must be the name of a file"),
        (".", "is a folder; name a file in it"),
        ("missing/x.svg", "must lie in a folder that exists; make 'missing' first"),
        ("x" * 300, "cannot be written: File name too long; name another file"),
    ],
)
def test_a_file_that_cannot_be_is_a_fault_among_the_others(
    output: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = faults_of(capsys, "show", "1f1b", *SIZES, "-o", output, "--format", "xml").splitlines()
    assert len(lines) == 2
    assert said in lines[1]
