"""Segments, positions and labels of isolated documents, against a loop over the tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.data import IGNORE_LABEL, Batches, validation_batches
from jaxpipe.data.rows import Row, parts_of
from jaxpipe.data.samples import count_samples, gather

END = 9


def row_with(tokens: list[int]) -> Row:
    return Row(parts_of(np.array(tokens, np.uint16), name="text"), end_of_document=END)


def isolated(tokens: list[int], sample: int, length: int) -> dict[str, list[int]]:
    """One sample, the slow and plain way."""
    found: dict[str, list[int]] = {"tokens": [], "labels": [], "segments": [], "positions": []}
    segment = position = 0
    for index in range(sample * length, (sample + 1) * length):
        if index > sample * length:
            previous_ends = index <= len(tokens) and tokens[index - 1] == END
            fills = index == len(tokens)
            segment, position = (segment + 1, 0) if previous_ends or fills else (segment, position + 1)
        token = tokens[index] if index < len(tokens) else END
        has_label = index + 1 < len(tokens) and token != END
        found["tokens"].append(token)
        found["labels"].append(tokens[index + 1] if has_label else IGNORE_LABEL)
        found["segments"].append(segment)
        found["positions"].append(position)
    return found


@given(tokens=st.lists(st.sampled_from([1, 2, 3, END]), min_size=2, max_size=40), length=st.integers(1, 12))
def test_segments_positions_and_labels_are_those_of_a_loop(tokens, length):
    if len(tokens) < length + 1:
        return
    count = count_samples(row_with(tokens), length, text="training")
    batch = gather(row_with(tokens), np.arange(count + 1), sequence_length=length, isolate=True)
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    for sample in range(count):
        expected = isolated(tokens, sample, length)
        assert {name: array[sample].tolist() for name, array in batch.items()} == expected
    assert (batch["labels"][count] == IGNORE_LABEL).all()


def test_the_picture_in_the_docstring():
    a, b, c, d = 1, 2, 3, 4
    batch = gather(row_with([a, b, END, c, d]), np.arange(1), sequence_length=4, isolate=True)
    assert batch["tokens"].tolist() == [[a, b, END, c]]
    assert batch["labels"].tolist() == [[b, END, IGNORE_LABEL, d]]
    assert batch["segments"].tolist() == [[0, 0, 0, 1]]
    assert batch["positions"].tolist() == [[0, 1, 2, 0]]


@pytest.mark.parametrize("isolate", [False, True])
def test_batches_tell_segments_only_where_documents_are_isolated(isolate):
    row = row_with([1, 2, END] * 20)
    names = {"tokens", "labels", *(("segments", "positions") if isolate else ())}
    training = Batches(row, sequence_length=4, batch_size=2, seed=0, isolate=isolate)
    fixed = validation_batches(row, sequence_length=4, batch_size=2, num_batches=1, isolate=isolate)
    assert set(next(training)) == names
    assert set(next(iter(fixed))) == names
