"""Prepared folders hold the tokens of the text encoded in memory, to the byte, however they came about."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.data import load_corpus, load_tokenizer
from jaxpipe.data.corpus import name_share
from jaxpipe.data.cuts import PIECE
from jaxpipe.data.documents import jsonl_documents
from jaxpipe.data.prepare import Settings, prepare
from jaxpipe.data.prepared import Manifest, read_manifest
from jaxpipe.data.tokenizer import encode_documents
from jaxpipe.errors import InputError, StorageError

Read = Callable[[Path, str], np.ndarray]
WORDS = ["cat", "the", "mat", "return", "日本", "été", "\n", "</s>", "<|endoftext|>", " "]


def text(rng: random.Random, length: int) -> str:
    return " ".join(rng.choices(WORDS, k=length))


def made(folder: Path, *, kind: str = ".jsonl", count: int = 60, seed: int = 0) -> list[str]:
    """A file or a folder of documents, some of them empty; their texts."""
    rng = random.Random(seed)
    texts = [text(rng, rng.choice([0, 1, 30, 200])) for _ in range(count)]
    folder.mkdir(exist_ok=True, parents=True)
    if kind == ".jsonl":
        lines = [json.dumps({"text": item, "id": number}) for number, item in enumerate(texts)]
        (folder / "a.jsonl").write_text("\n\n".join(lines))  # blank lines, and none at the end
    elif kind == ".parquet":
        import pyarrow
        import pyarrow.parquet

        rows = [None if number % 9 == 5 else item for number, item in enumerate(texts)]
        table = pyarrow.table({"id": list(range(count)), "text": rows})
        pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=7)
        texts = [row or "" for row in rows]
    else:
        for number, item in enumerate(texts):
            (folder / f"{number:03}.txt").write_text(item)
    return texts


def ordinals(folder: Path, kind: str, count: int) -> list[str]:
    """What decides the side of each document, by its name and where it begins."""
    if kind == ".txt":
        return [f"{number:03}.txt" for number in range(count)]
    if kind == ".parquet":
        return [f"a.parquet:{number}" for number in range(count)]
    content = (folder / "a.jsonl").read_bytes()
    starts = [0, *(at + 2 for at in range(len(content)) if content[at : at + 2] == b"\n\n")]
    return [f"a.jsonl:{start}" for start in starts]


def files_of(folder: Path) -> dict[str, bytes]:
    """The result: everything but the plan, which names the files of text, and the lock."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in ("plan.json", ".lock")
    }


@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".parquet"])
@pytest.mark.parametrize("tokenizer", ["bytes", "json", "model"])
def test_shards_hold_the_tokens_of_the_text_encoded_in_memory(
    kind, tokenizer, tmp_path, tokenizers_of, prepared_row: Read
):
    texts = made(tmp_path / "in", kind=kind)
    file = tokenizers_of[tokenizer]
    manifest = prepare(
        [f"{tmp_path}/in"],
        tmp_path / "out",
        tokenizer=file,
        settings=Settings(validation_fraction=0.3, unit_bytes=3000),
        workers=1,
    )
    sides: dict[str, list[bytes]] = {"training": [], "validation": []}
    for item, name in zip(texts, ordinals(tmp_path / "in", kind, len(texts)), strict=True):
        if item:
            sides["validation" if name_share(name) < 0.3 else "training"].append(item.encode())
    for side, documents in sides.items():
        expected = encode_documents(load_tokenizer(file), documents)
        np.testing.assert_array_equal(prepared_row(tmp_path / "out", side), expected)
        assert manifest.documents(side) == len(documents)
    assert manifest.empty_documents == (0 if kind == ".txt" else texts.count(""))
    assert manifest.text_bytes == sum(len(item.encode()) for item in texts)
    assert len(manifest.shards) > 4


@given(
    lines=st.lists(st.sampled_from(["", "  ", '{"text": "a"}', '{"text": "line"}']), max_size=12),
    cuts=st.lists(st.integers(0, 120), max_size=5),
    ends_with_line=st.booleans(),
)
def test_however_lines_are_shared_out_each_is_read_once(lines, cuts, ends_with_line, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "shared.jsonl"
    file.write_text("\n".join(lines) + "\n" * ends_with_line)
    size = file.stat().st_size
    borders = [0, *sorted(min(cut, size) for cut in cuts), size + 9]
    found = [
        document
        for start, stop in pairwise(borders)
        for document in jsonl_documents(file, start, stop, field="text")
    ]
    assert [text for _, text in found] == [
        json.loads(line)["text"].encode() for line in lines if line.strip()
    ]
    assert all(file.read_bytes()[offset:].startswith(b'{"text": "' + text) for offset, text in found)


@pytest.mark.parametrize("tokenizer", ["bytes", "json"])
def test_files_of_text_are_split_as_when_they_are_read_in_memory(
    tokenizer, tmp_path, tokenizers_of, prepared_row: Read
):
    made(tmp_path / "in", kind=".txt")
    file = tokenizers_of[tokenizer]
    prepare([f"{tmp_path}/in"], tmp_path / "out", tokenizer=file, workers=1)
    corpus = load_corpus(f"{tmp_path}/in", tokenizer=load_tokenizer(file))
    np.testing.assert_array_equal(prepared_row(tmp_path / "out", "training"), corpus.training)
    np.testing.assert_array_equal(prepared_row(tmp_path / "out", "validation"), corpus.validation)


@pytest.mark.parametrize("tokenizer", ["bytes", "json"])
def test_one_long_text_is_shared_out_and_its_tail_is_the_validation_text(
    tokenizer, tmp_path, tokenizers_of, prepared_row: Read
):
    rng = random.Random(1)
    (tmp_path / "a.txt").write_text("".join(text(rng, 9) + "\n" for _ in range(30_000)))
    file = tokenizers_of[tokenizer]
    manifest = prepare(
        [f"{tmp_path}/a.txt"],
        tmp_path / "out",
        tokenizer=file,
        settings=Settings(unit_bytes=PIECE),
        workers=2,
    )
    corpus = load_corpus(f"{tmp_path}/a.txt", tokenizer=load_tokenizer(file))
    assert sum(shard.side == "training" for shard in manifest.shards) > 3
    assert [manifest.documents(side) for side in ("training", "validation")] == [1, 1]
    np.testing.assert_array_equal(prepared_row(tmp_path / "out", "training"), corpus.training)
    np.testing.assert_array_equal(prepared_row(tmp_path / "out", "validation"), corpus.validation)


def test_the_manifest_knows_sizes_hashes_ends_and_the_largest_id(tmp_path):
    made(tmp_path / "in")
    folder = tmp_path / "out"
    prepare([f"{tmp_path}/in"], folder, settings=Settings(unit_bytes=3000), workers=1)
    manifest = read_manifest(folder)
    assert (manifest.dtype, manifest.vocab_size, manifest.end_of_document) == ("<u2", 257, 256)
    for shard in manifest.shards:
        tokens, ends = (folder / "shards" / f"{shard.name}.{kind}" for kind in ("tokens", "ends"))
        ids = np.fromfile(tokens, "<u2")
        assert shard.tokens == len(ids)
        assert shard.tokens_sha256 == hashlib.sha256(tokens.read_bytes()).hexdigest()
        assert shard.ends_sha256 == hashlib.sha256(ends.read_bytes()).hexdigest()
        assert np.fromfile(ends, "<u8").tolist() == (np.flatnonzero(ids == 256) + 1).tolist()
        assert (shard.largest_id, shard.largest_at) == (ids.max(), ids.argmax())
    assert not list(folder.rglob("*.partial")) + list((folder / "shards").glob("*.json"))


def test_the_number_of_workers_does_not_show(tmp_path, tokenizers_of):
    made(tmp_path / "in")
    made(tmp_path / "in", kind=".txt")
    for workers in (1, 2):
        prepare(
            [f"{tmp_path}/in"],
            tmp_path / str(workers),
            tokenizer=tokenizers_of["json"],
            settings=Settings(unit_bytes=2000),
            workers=workers,
        )
    assert files_of(tmp_path / "1") == files_of(tmp_path / "2")


KILLED = """
import sys
from pathlib import Path
from jaxpipe.data.prepare import Settings, prepare
if __name__ == "__main__":
    prepare([sys.argv[1]], Path(sys.argv[2]), settings=Settings(unit_bytes=4000), workers=2)
"""


@pytest.mark.parametrize("records", [1, 20])
def test_a_killed_attempt_leaves_no_process_and_is_gone_on_with_to_the_same_bytes(records, tmp_path):
    made(tmp_path / "in", count=2000)
    settings = Settings(unit_bytes=4000)
    prepare([f"{tmp_path}/in"], tmp_path / "whole", settings=settings, workers=2)
    out = tmp_path / "out"
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, f"{tmp_path}/killed.py", f"{tmp_path}/in", str(out)]
    with subprocess.Popen(command) as process:
        while len(list(out.glob("shards/*.json"))) < records:
            assert process.poll() is None, "it was to be killed before its end"
            time.sleep(0.001)
        children = children_of(process.pid)
        process.kill()
    assert not (out / "manifest.json").exists()
    wait_until_gone(children)
    done = {file: file.stat().st_mtime_ns for file in out.glob("shards/*.json")}
    kept = {file.with_suffix(".training.tokens") for file in done}
    before = {file: file.stat().st_mtime_ns for file in kept if file.exists()}
    (out / "shards" / "00000.training.tokens.partial").write_bytes(b"half")
    prepare([f"{tmp_path}/in"], out, settings=settings, workers=1)
    assert files_of(out) == files_of(tmp_path / "whole")
    assert {file: file.stat().st_mtime_ns for file in before} == before
    units = {shard.name.partition(".")[0] for shard in read_manifest(out).shards}
    assert records <= len(done) < len(units), "workers have gone on without their parent"


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until_gone(pids: list[int]) -> None:
    limit = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < limit, "workers outlive the process that started them"
        time.sleep(0.02)


def test_a_killed_worker_is_told_and_what_is_done_is_kept(tmp_path):
    made(tmp_path / "in", count=3000)
    settings, killed = Settings(unit_bytes=4000), False

    def kill_one(progress) -> None:
        nonlocal killed
        children = children_of(os.getpid())
        workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        if workers and not killed:
            os.kill(workers[0], signal.SIGKILL)
            killed = True

    with pytest.raises(StorageError, match=r"a worker has ended with -9.*fewer --workers"):
        prepare([f"{tmp_path}/in"], tmp_path / "out", settings=settings, workers=1, on_progress=kill_one)
    prepare([f"{tmp_path}/in"], tmp_path / "out", settings=settings, workers=2)
    prepare([f"{tmp_path}/in"], tmp_path / "whole", settings=settings, workers=2)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def finished(tmp_path: Path, **changes) -> Manifest:
    settings = Settings(**{"unit_bytes": 3000, **changes})
    return prepare([f"{tmp_path}/in"], tmp_path / "out", settings=settings, workers=1)


def test_a_finished_folder_is_left_alone_and_belongs_to_its_text_and_settings(tmp_path, tokenizers_of):
    made(tmp_path / "in")
    first = finished(tmp_path)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("[!.]*/*")}
    assert finished(tmp_path) == first
    assert {file: file.stat().st_mtime_ns for file in before} == before
    # as one that was killed between the manifest and the tidying leaves it
    (tmp_path / "out" / "shards" / "00000.json").write_text("{}")
    assert finished(tmp_path) == first
    assert set((tmp_path / "out").glob("[!.]*/*")) == set(before)
    with pytest.raises(
        InputError, match=r"--shard-size in bytes was 3000 and is 4000.*another -o, or remove"
    ):
        finished(tmp_path, unit_bytes=4000)
    with pytest.raises(InputError, match="another tokenizer; another end of document"):
        prepare(
            [f"{tmp_path}/in"],
            tmp_path / "out",
            tokenizer=tokenizers_of["json"],
            settings=Settings(unit_bytes=3000),
            workers=1,
        )
    (tmp_path / "in" / "b.txt").write_text("more")
    with pytest.raises(InputError, match=r"1 file changed, such as b\.txt"):
        finished(tmp_path)


def test_text_that_changes_while_it_is_prepared_is_refused(tmp_path):
    made(tmp_path / "in")

    def change(progress) -> None:
        os.utime(tmp_path / "in" / "a.jsonl", ns=(1, 1))

    with pytest.raises(InputError, match=r"a\.jsonl has changed while it was prepared"):
        prepare([f"{tmp_path}/in"], tmp_path / "out", workers=1, on_progress=change)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".parquet"])
def test_either_side_has_a_document_however_small_the_share(kind, fraction, tmp_path, prepared_row: Read):
    """The one whose name is nearest to it, also when the attempt that finds this out was interrupted."""
    texts = made(tmp_path / "in", kind=kind, count=12)
    manifest = finished(tmp_path, validation_fraction=fraction, unit_bytes=500)
    counts = [manifest.documents(side) for side in ("training", "validation")]
    assert min(counts) == 1
    assert sum(counts) == sum(bool(item) for item in texts)
    names = ordinals(tmp_path / "in", kind, len(texts))
    by_share = sorted((name_share(name), item) for name, item in zip(names, texts, strict=True) if item)
    alone = by_share[0][1] if fraction < 0.5 else by_share[-1][1]
    rare = "validation" if fraction < 0.5 else "training"
    row = prepared_row(tmp_path / "out", rare)
    np.testing.assert_array_equal(row, encode_documents(load_tokenizer(None), [alone.encode()]))


@pytest.mark.parametrize("kind", [".txt", ".jsonl"])
def test_a_single_document_is_cut_in_two(kind, tmp_path, prepared_row: Read):
    content = "0123456789" * 10
    file = tmp_path / f"a{kind}"
    file.write_text(content if kind == ".txt" else f'\n{{"text": "{content}"}}\n{{"text": ""}}\n')
    prepare([str(file)], tmp_path / "out", settings=Settings(validation_fraction=0.07), workers=1)
    corpus = load_corpus(str(file), validation_fraction=0.07) if kind == ".txt" else None
    training, validation = (prepared_row(tmp_path / "out", side) for side in ("training", "validation"))
    assert bytes(training[:-1].tolist()) + bytes(validation[:-1].tolist()) == content.encode()
    assert (len(training), len(validation)) == (94, 8)
    assert corpus is None or np.array_equal(corpus.training, training)


def test_a_share_of_zero_keeps_all_for_training(tmp_path):
    texts = made(tmp_path / "in")
    manifest = finished(tmp_path, validation_fraction=0.0)
    assert (manifest.documents("training"), manifest.documents("validation")) == (
        sum(map(bool, texts)),
        0,
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "fine"}\n' * 400 + b"\n{broken\n", r"a\.jsonl:402: not a line of JSON"),
        ("a.jsonl", b'{"text": "fine"}\n' * 400 + b'{"other": 1}', r"a\.jsonl:401: there is no field 'text'"),
        ("a.jsonl", b'\n{"text": ""}\n', "the only file holds no text"),
        ("a.parquet", b"PAR1 nonsense", r"a\.parquet is not a whole \.parquet file"),
        ("a.txt", b"x", r"a\.txt holds a single byte, too little to split"),
    ],
)
def test_what_is_no_text_is_named_with_file_and_line(name, content, said, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        finished(tmp_path, unit_bytes=600)


def test_a_parquet_column_that_is_not_there_or_no_text_is_refused(tmp_path):
    made(tmp_path / "in", kind=".parquet")
    with pytest.raises(InputError, match=r"there is no column 'body' \(it has id, text\); set data.field"):
        finished(tmp_path, field="body")
    with pytest.raises(InputError, match="column 'id' must be text, found int64"):
        finished(tmp_path, field="id")


def test_a_line_that_is_too_long_to_read_whole_is_refused(tmp_path, monkeypatch):
    from jaxpipe.data import documents

    monkeypatch.setattr(documents, "LONGEST_LINE", 50)
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "short"}\n{"text": "' + "x" * 50 + '"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl:2: a line has at most 50 bytes; write such a document"):
        list(documents.jsonl_documents(file, 0, 1000, field="text"))


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    made(tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"must be new or empty, but it has mine\.txt"):
        finished(tmp_path)


def test_two_processes_do_not_prepare_the_same_folder(tmp_path):
    import fcntl

    made(tmp_path / "in")
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is preparing"):
            finished(tmp_path)
