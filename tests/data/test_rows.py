"""Rows of several parts, in memory or in files that are mapped, are read as if they were one array."""

import resource
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.data import Batches
from jaxpipe.data.rows import Part, Place, Row, check_ids, parts_of
from jaxpipe.data.samples import count_samples, gather
from jaxpipe.errors import InputError

U2 = np.dtype("<u2")


def mapped(path: Path, tokens: list[int], *, dtype: np.dtype = U2) -> Part:
    np.array(tokens, dtype).tofile(path)
    largest = Place(max(tokens), str(path), int(np.argmax(tokens)))
    return Part(path, len(tokens), dtype, str(path), "0" * 64, largest)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    sequence_length=st.integers(1, 12),
    isolate=st.booleans(),
)
def test_windows_cross_the_borders_of_parts(lengths, sequence_length, isolate):
    tokens = (np.arange(sum(lengths)) * 7 % 257).astype(np.uint16)
    if len(tokens) < sequence_length + 1:
        return
    parts = np.split(tokens, np.cumsum(lengths)[:-1])
    row = Row(tuple(part for piece in parts for part in parts_of(piece, name="x")))
    samples = np.arange(count_samples(row, sequence_length, text="training") + 2)[::-1]
    one = gather(row, samples, sequence_length=sequence_length, isolate=isolate)
    other = gather(tokens, samples, sequence_length=sequence_length, isolate=isolate)
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])


def test_sample_numbers_go_on_from_one_row_to_the_next():
    rows = [Row(parts_of(np.arange(start, start + 9, dtype=np.uint16), name="x")) for start in (0, 100)]
    batch = gather(rows, np.array([0, 1, 2, 3, 4]), sequence_length=4)
    assert batch["tokens"][:, 0].tolist() == [0, 4, 100, 104, 108]
    assert batch["labels"][:, -1].tolist() == [4, 8, 104, 108, -100]


def test_tokens_of_files_are_those_of_the_array_whatever_their_width(tmp_path):
    tokens = [*range(40), 70_000]
    row = Row(
        (
            mapped(tmp_path / "a", tokens[:17], dtype=U2),
            mapped(tmp_path / "b", tokens[17:], dtype=np.dtype("<u4")),
        )
    )
    batch = gather(row, np.arange(8), sequence_length=5)
    assert batch["tokens"].ravel().tolist() == tokens[:40]
    assert batch["labels"][-1, -1] == 70_000


def test_an_id_outside_the_vocabulary_is_named_with_file_and_offset_when_it_is_read(tmp_path):
    part = mapped(tmp_path / "b.tokens", [1, 2, 3, 4, 300, 5, 6])
    row = Row((*parts_of(np.zeros(5, np.uint16), name="a"), part), vocab_size=257)
    gather(row, np.array([0, 1]), sequence_length=4)
    with pytest.raises(
        InputError, match=r"id 300 at token 4 of .*b\.tokens is outside the vocabulary of 257"
    ):
        gather(row, np.array([2]), sequence_length=4)


def test_an_id_that_the_model_does_not_know_is_named_before_anything_is_read(tmp_path):
    known = Place(511, "shards/00003.training.tokens", 12_345_678)
    part = Part(tmp_path / "no such file", 10**12, U2, "x", "0" * 64, known)
    with pytest.raises(
        InputError, match=r"id 511 at token 12,345,678 of shards/00003\.training\.tokens .*512"
    ):
        check_ids([Row((part,))], vocab_size=511)
    check_ids([Row((part,))], vocab_size=512)


def test_a_row_of_many_gigabytes_is_there_at_once_and_not_in_memory(tmp_path):
    """Two sparse files of 60 GB; reading them would take more memory than there is, and minutes."""
    files = [tmp_path / name for name in ("a", "b")]
    for file in files:
        with file.open("wb") as opened:
            opened.truncate(60 * 10**9)
    parts = [Part(file, 30 * 10**9, U2, str(file), "0" * 64, Place(0, "", 0)) for file in files]
    Batches(np.zeros(99, np.uint16), sequence_length=4, batch_size=1, seed=0)  # imports
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    batches = Batches(Row(tuple(parts)), sequence_length=2048, batch_size=16, seed=0)
    batches.set_state(batches.get_state() | {"next_sample": 10**9})
    batch = next(batches)
    assert time.perf_counter() - began < 1
    assert batch["tokens"].shape == (16, 2048)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


def test_a_file_that_vanished_is_refused_with_its_name(tmp_path):
    row = Row((Part(tmp_path / "gone", 9, U2, "gone", "0" * 64, Place(0, "", 0)),))
    with pytest.raises(InputError, match=r"gone cannot be read \(No such file"):
        gather(row, np.array([0]), sequence_length=4)
