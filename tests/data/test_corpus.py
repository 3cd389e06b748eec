"""Documents, tokens, and the split into training and validation."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.data import END_OF_DOCUMENT, load_corpus
from jaxpipe.data.corpus import name_share
from jaxpipe.data.tokens import Tokens, encode
from jaxpipe.errors import InputError


def documents(tokens: Tokens) -> list[bytes]:
    """The documents of a row, the slow and plain way."""
    found: list[list[int]] = [[]]
    for token in tokens.tolist():
        if token == END_OF_DOCUMENT:
            found.append([])
        else:
            found[-1].append(token)
    assert found.pop() == []
    return [bytes(document) for document in found]


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_tokens_are_the_bytes_of_the_documents_each_ended_once(texts):
    assert documents(encode(texts)) == texts


def write_files(root: Path, count: int) -> None:
    root.mkdir(exist_ok=True)
    for index in range(count):
        (root / f"{index:03}.txt").write_text(f"document {index}")


def sides(path: str | list[str], fraction: float) -> tuple[set[bytes], set[bytes]]:
    corpus = load_corpus(path, validation_fraction=fraction)
    return set(documents(corpus.training)), set(documents(corpus.validation))


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("count", [2, 3, 40, 200])
def test_each_file_is_on_one_side_and_neither_side_is_empty(count, fraction, tmp_path):
    write_files(tmp_path, count)
    training, validation = sides(str(tmp_path), fraction)
    assert training
    assert validation
    assert not training & validation
    assert len(training | validation) == count
    spread = 4 * (count * fraction * (1 - fraction)) ** 0.5  # four standard deviations of a fair draw
    assert abs(len(validation) - count * fraction) <= spread + 1


def test_the_split_depends_on_names_alone(tmp_path):
    """Neither the folder, nor the order of the paths, nor files beside them, nor contents move a file."""
    write_files(tmp_path / "a", 60)
    _, validation = sides(str(tmp_path / "a"), 0.2)
    (tmp_path / "a").rename(tmp_path / "b")
    paths = [str(file) for file in (tmp_path / "b").iterdir()]
    random.Random(0).shuffle(paths)
    assert sides(paths, 0.2)[1] == validation
    (tmp_path / "b" / "extra.txt").write_text("extra")
    assert sides(str(tmp_path / "b"), 0.2)[1] - {b"extra"} == validation


def test_the_share_of_a_name_is_fixed_for_ever_and_spread_evenly():
    assert name_share("json/decoder.py") == int("3b2e3cb3d29d", 16) / 2**48  # of sha256sum
    shares = np.array([name_share(str(index)) for index in range(2000)])
    counts, _ = np.histogram(shares, bins=10, range=(0, 1))
    assert counts.sum() == 2000
    assert counts.min() > 140  # 200 expected, standard deviation 13.4


def test_empty_files_take_no_part_in_the_split(tmp_path):
    for name, text in {"a.txt": "", "b.txt": "one", "c.txt": "", "d.txt": "two"}.items():
        (tmp_path / name).write_text(text)
    training, validation = sides(str(tmp_path), 0.5)
    assert training | validation == {b"one", b"two"}
    assert len(training) == len(validation) == 1


def test_bytes_that_are_no_utf8_are_text_all_the_same(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(256)))
    (tmp_path / "b.txt").write_bytes(b"\r\n\xff")
    corpus = load_corpus(str(tmp_path))
    assert set(documents(corpus.training)) | set(documents(corpus.validation)) == {
        bytes(range(256)),
        b"\r\n\xff",
    }


def test_a_single_file_gives_its_tail_and_says_so(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"0123456789" * 10)
    corpus = load_corpus(f"{tmp_path}/a.txt", validation_fraction=0.07)
    assert documents(corpus.training) == [(b"0123456789" * 10)[:93]]
    assert documents(corpus.validation) == [b"3456789"]
    assert "one document: its last 7 of 100 bytes are the validation text" in corpus.summary
    assert "94 tokens for training, 8 for validation" in corpus.summary


def test_a_tail_of_one_is_told_in_the_singular(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"0123456789")
    assert "its last 1 of 10 bytes is the validation text" in load_corpus(f"{tmp_path}/a.txt").summary


def test_a_single_jsonl_gives_its_last_lines_and_says_so(tmp_path):
    lines = [json.dumps({"id": index, "text": f"line {index} \u00e9"}) for index in range(10)]
    (tmp_path / "a.jsonl").write_text("\n\n".join(lines) + "\n")
    corpus = load_corpus(f"{tmp_path}/a.jsonl", validation_fraction=0.2)
    assert documents(corpus.training) == [f"line {index} \u00e9".encode() for index in range(8)]
    assert documents(corpus.validation) == [b"line 8 \xc3\xa9", b"line 9 \xc3\xa9"]
    assert "one file: its last 2 of 10 documents are the validation text" in corpus.summary


@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.999])
@pytest.mark.parametrize("text", ["ab", '{"text": "a"}\n{"text": "b"}', '{"text": "ab"}'])
def test_the_smallest_single_file_still_gives_both_sides(text, fraction, tmp_path):
    file = tmp_path / ("a.jsonl" if text.startswith("{") else "a.txt")
    file.write_text(text)
    assert sides(str(file), fraction) == ({b"a"}, {b"b"})


def test_a_field_of_ones_own_is_read(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"content": "x\\ud800y", "text": 3}\n{"content": ""}\n{"content": "z"}'
    )
    corpus = load_corpus(f"{tmp_path}/a.jsonl", field="content")
    assert documents(corpus.training) == [b"x\xed\xa0\x80y"]
    assert documents(corpus.validation) == [b"z"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{not json", "not a line of JSON"),
        (b'{"text": "\xff"}', "not a line of JSON"),
        ('{"content": "a", "id": 3}', r"there is no field 'text' \(it has content, id\); set data.field"),
        ("{}", r"there is no field 'text' \(it has none\)"),
        ("[1]", "there is no field 'text' .it is no object"),
        ('{"text": 3}', "field 'text' must be text, found 3"),
        ('{"text": null}', "field 'text' must be text, found None"),
        ("[" * 100_000, "the JSON is nested too deeply"),
        (
            '{"text": [' + "1, " * 10_000 + "1]}",
            r"field 'text' must be text, found \[1, 1, 1, 1, 1, 1, \.\.\.\]",
        ),
    ],
)
def test_a_bad_line_of_jsonl_is_named_with_file_and_line(line, said, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "fine"}\n\n' + (line if isinstance(line, bytes) else line.encode()))
    with pytest.raises(InputError, match=f"a.jsonl:3: {said}"):
        load_corpus(str(file))


def test_text_that_is_not_enough_to_split_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match=r"a.txt holds a single byte, too little to split"):
        load_corpus(f"{tmp_path}/a.txt")
    (tmp_path / "a.jsonl").write_text('\n\n{"text": ""}\n')
    with pytest.raises(InputError, match="the only file holds no text"):
        load_corpus(f"{tmp_path}/a.jsonl")


def test_a_fraction_of_zero_keeps_all_text_for_training(tmp_path):
    write_files(tmp_path, 3)
    corpus = load_corpus(str(tmp_path), validation_fraction=0)
    assert len(documents(corpus.training)) == 3
    assert len(corpus.validation) == 0


def test_the_default_text_is_the_same_in_every_process_and_read_fast():
    code = (
        "import time, zlib; from jaxpipe.data import load_corpus; start = time.perf_counter(); "
        "c = load_corpus(); seconds = time.perf_counter() - start; "
        "print(zlib.crc32(c.training), zlib.crc32(c.validation), len(c.training), len(c.validation), seconds)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert runs[0][:4] == runs[1][:4]
    assert int(runs[0][2]) > 5_000_000
    assert int(runs[0][3]) > 100_000
    assert min(float(run[4]) for run in runs) < 2
