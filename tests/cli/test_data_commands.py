"""``jaxpipe data``: prepares, says what came out, goes on after an interruption, and verifies."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from jaxpipe.cli import main


def texts(folder: Path, *, count: int = 40, length: int = 50) -> str:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:03}.txt").write_text(f"text {number} " * length)
    return str(folder)


def test_prepare_says_what_came_out_and_verify_that_it_is_whole(tmp_path, capsys):
    out = f"{tmp_path}/out"
    assert main(["data", "prepare", texts(tmp_path / "in"), "-o", out, "--validation-fraction", "0.2"]) == 0
    said = capsys.readouterr()
    assert said.err == ""  # no bar where nobody looks
    assert f"{out}: 1.00 bytes a token; 2 shards; " in said.out
    assert "  training    11,580 tokens in 30 documents\n" in said.out
    assert "  validation  3,960 tokens in 10 documents\n" in said.out
    assert main(["data", "verify", out]) == 0
    assert capsys.readouterr().out == f"{out}: whole, 2 shards, 15,540 tokens\n"


def test_verify_names_what_is_damaged_and_ends_with_1(tmp_path, capsys):
    out = tmp_path / "out"
    main(["data", "prepare", texts(tmp_path / "in"), "-o", str(out)])
    shard = out / "shards" / "00000.training.tokens"
    content = bytearray(shard.read_bytes())
    content[201] = 9  # the high byte of token 100
    shard.write_bytes(content)
    (out / "shards" / "00000.validation.ends").unlink()
    capsys.readouterr()
    assert main(["data", "verify", str(out)]) == 1
    said = capsys.readouterr().out
    assert "00000.training.tokens is not what was written (its hash is another)" in said
    assert f"holds id {content[200] + 9 * 256} at token 100, outside the vocabulary of 257" in said
    assert "00000.validation.ends cannot be read (No such file or directory)" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none"], "'none' matches no file"),
        (["train.py", "--workers", "0"], "--workers '0' must be a whole number from 1 to 1024"),
        (["train.py", "--shard-size", "many"], "--shard-size 'many' must be a number from"),
        (["train.py", "--validation-fraction", "1"], "--validation-fraction 1 leaves no text for training"),
        (["train.py", "--tokenizer", "none.json"], "the tokenizer none.json cannot be read"),
        (["{bad}"], "bad.jsonl:3: not a line of JSON"),
    ],
)
def test_what_cannot_be_prepared_ends_with_2_and_a_sentence(arguments, said, tmp_path, capsys):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "fine"}\n\nbroken\n')
    arguments = [argument.format(bad=bad) for argument in arguments]
    assert main(["data", "prepare", *arguments, "-o", f"{tmp_path}/out"]) == 2
    assert said in capsys.readouterr().err


def test_a_full_disk_is_one_sentence_and_ends_with_1_and_the_command_goes_on_from_there(tmp_path):
    """A limit on the size of a file stands for it."""
    source = texts(tmp_path / "in", count=4, length=20_000)
    command = [sys.executable, "-m", "jaxpipe", "data", "prepare", source, "-o", f"{tmp_path}/out"]

    limited = ["bash", "-c", 'ulimit -f 100 && exec "$@"', "bash", *command]  # in units of 1024 bytes
    done = subprocess.run(limited, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "00000.training.tokens cannot be written: File too large; make room, then run the same" in line
    assert not list((tmp_path / "out" / "shards").iterdir())
    assert subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_ends_it_leaves_no_worker_and_the_same_command_goes_on(tmp_path, number, code, word):
    source = texts(tmp_path / "in", count=3000)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "jaxpipe", "data", "prepare", source, "-o", str(out)]
    command += ["--shard-size", "0.01", "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while len(list(out.glob("shards/*.json"))) < 2:
        assert process.poll() is None, "it was to be interrupted before its end"
        time.sleep(0.001)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does: to all of its processes
    else:
        process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == code
    assert said == f"jaxpipe data prepare: {word}\n"
    wait_until_gone(process.pid)
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert main(["data", "verify", str(out)]) == 0


def wait_until_gone(group: int) -> None:
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError("somebody is left in the group of the process")


def test_the_commands_load_no_jax_and_only_what_they_need(tmp_path):
    source = texts(tmp_path / "in", count=2)
    code = (
        "import sys\nfrom jaxpipe.cli import main\n"
        f"main(['data', 'prepare', {source!r}, '-o', {str(tmp_path / 'out')!r}, '--workers', '1'])\n"
        "heavy = {'jax', 'grain', 'tokenizers', 'sentencepiece', 'pyarrow'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    guarded = "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in code.splitlines())
    (tmp_path / "program.py").write_text(guarded)
    done = subprocess.run([sys.executable, f"{tmp_path}/program.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_memory_does_not_grow_with_the_text(tmp_path):
    """300 MB in two files; all processes together hold less, most of it Python and its libraries."""
    line = json.dumps({"text": "So zieht das Boot den Fluss hinab, über Steine und über Sand. " * 30}) + "\n"
    with (tmp_path / "lines.jsonl").open("w") as file:
        file.writelines(line for _ in range(150_000_000 // len(line)))
    with (tmp_path / "one-document.txt").open("w") as file:
        file.writelines(line for _ in range(150_000_000 // len(line)))
    words = ["data", "prepare", str(tmp_path), "-o", str(tmp_path / "out"), "--workers", "2"]
    process = subprocess.Popen([sys.executable, "-m", "jaxpipe", *words])
    largest = 0
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):  # of processes that have just ended
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            largest = max(largest, sum(member.memory_info().rss for member in family))
        time.sleep(0.05)
    assert process.returncode == 0
    assert 50_000_000 < largest < 250_000_000, largest


def test_verify_looks_at_the_tokenizer_and_wants_a_folder(tmp_path, capsys):
    from tiny_tokenizers import make_json

    make_json(tmp_path / "mine.json")
    out = tmp_path / "out"
    words = [
        "data",
        "prepare",
        texts(tmp_path / "in"),
        "-o",
        str(out),
        "--tokenizer",
        f"{tmp_path}/mine.json",
    ]
    assert main([*words, "--tokenizer", f"{tmp_path}/mine.json"]) == 0
    assert main(["data", "verify", str(out)]) == 0
    make_json(out / "tokenizer" / "mine.json", vocab_size=290)
    assert main(["data", "verify", str(out)]) == 1
    assert "is not the tokenizer that" in capsys.readouterr().out
    (out / "tokenizer" / "mine.json").unlink()
    assert main(["data", "verify", str(out)]) == 1
    assert "mine.json is not there, the tokenizer that" in capsys.readouterr().out
    assert main(["data", "verify", f"{tmp_path}/none"]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_line_with_many_long_keys_is_refused_with_the_first_of_them(tmp_path):
    """A message of more than a pipe holds must not keep the worker waiting for its reader for ever."""
    keys = {f"key {number} " + "x" * 400: 1 for number in range(2000)}
    (tmp_path / "lines.jsonl").write_text('{"text": "fine"}\n' + json.dumps(keys) + "\n")
    command = [sys.executable, "-m", "jaxpipe", "data", "prepare", str(tmp_path / "lines.jsonl")]
    finished = subprocess.run(
        [*command, "-o", str(tmp_path / "out")], capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 2
    assert "lines.jsonl:2: there is no field 'text' (it has key 0 x" in finished.stderr
    assert len(finished.stderr) < 1000


def test_a_parquet_whose_footer_is_garbage_is_named(tmp_path, capsys):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + b"\xff" * 100 + (100).to_bytes(4, "little") + b"PAR1")
    assert main(["data", "prepare", str(tmp_path / "bad.parquet"), "-o", str(tmp_path / "out")]) == 2
    assert "bad.parquet is not a whole .parquet file" in capsys.readouterr().err
