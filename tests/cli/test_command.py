"""The command as a whole: it knows its words, stays light, and ends well."""

import resource
import subprocess
import sys

import pytest

from jaxpipe.cli import main
from jaxpipe.schedules.generators.catalog import NAMED

LIGHT = """
import sys
from jaxpipe.cli import main
main(["schedule", "show", "zb_h1", "--ranks", "8", "--microbatches", "64", "--format", "html"])
main(["schedule", "trace", "zb_h1", "--ranks", "2", "--microbatches", "4"])
heavy = {"jax", "jaxlib", "numpy", "flax", "rich", "yaml", "tyro"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else 0)
"""


def is_fast_enough(command: list[str], *, seconds: float) -> bool:
    """In time of the processor, which others on the machine do not use up; the best of three."""
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < seconds:
            return True
    return False


def test_list_names_every_schedule_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines[1:] if not line.startswith(" ")]
    assert [row[0] for row in rows] == list(NAMED)
    for name, chunks, *_ in rows:
        assert chunks.rstrip("+") == str(NAMED[name].default_chunks)
    text = " ".join(" ".join(lines).split())
    for generator in NAMED.values():
        assert " ".join(generator.summary.split()) in text
        for option in generator.options:
            assert option in text


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["schedule"],
        ["train"],
        ["schedule", "show"],
        ["schedule", "compare"],
        ["schedule", "show", "1f1b", "--rank-count", "4"],
        ["schedule", "show", "1f1b", "--ranks", "2", "--microbatches", "2", "--form", "json"],
    ],
)
def test_a_command_that_does_not_exist_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


@pytest.mark.parametrize("action", ["list", "show", "compare", "trace", "csv"])
def test_every_command_has_help(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["schedule", action, "--help"])
    assert ended.value.code == 0
    assert f"jaxpipe schedule {action}" in capsys.readouterr().out


def test_it_answers_within_a_second_and_never_loads_jax() -> None:
    assert is_fast_enough([sys.executable, "-c", LIGHT], seconds=1.0)


def test_the_list_is_there_in_less_than_a_third_of_a_second() -> None:
    assert is_fast_enough([sys.executable, "-m", "jaxpipe", "schedule", "list"], seconds=0.3)


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jaxpipe", "schedule", "list"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stdout.startswith("schedule")


def test_a_reader_that_has_seen_enough_causes_no_traceback() -> None:
    command = (
        f"{sys.executable} -m jaxpipe schedule show gpipe --ranks 8 --microbatches 512 --format json | true"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


def run_shell(words: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m jaxpipe schedule {words}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)


def test_a_full_disk_behind_standard_output_is_one_sentence() -> None:
    done = run_shell("csv zb_h1 --ranks 4 --microbatches 8 > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "jaxpipe schedule csv: standard output cannot be written: No space left on device\n"


def test_a_closed_standard_output_is_no_fault() -> None:
    done = run_shell("csv zb_h1 --ranks 4 --microbatches 8 >&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_ends_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxpipe.cli.auto.find_schedule", interrupted)
    monkeypatch.setattr("jaxpipe.cli.command._close_stdout", lambda: None)
    assert main(["schedule", "auto", "--ranks", "2", "--microbatches", "2"]) == 130
    assert capsys.readouterr().err == "jaxpipe schedule auto: interrupted\n"


@pytest.mark.parametrize("number", ["４", "٤", "1_0", "x", "1e3"])  # noqa: RUF001
def test_only_plain_digits_are_a_number(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "show", "1f1b", "--ranks", number, "--microbatches", "2"]) == 2
    assert f"--ranks {number!r} must be a whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show 1f1b --cost head=-1", "cost head=-1.0 must be 0, or at least 1e-09 and at most 1e+09"),
        ("show gpipe --option reverse_backward=maybe", "'maybe' must be a whole number, true or false"),
        ("csv dualpipe --format torch", "cannot tell 2 pipes apart; use the form jaxpipe"),
    ],
)
def test_a_remedy_is_one_that_there_is(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", *words.split(), "--ranks", "4", "--microbatches", "8"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(said)
