"""Packing: every token once, labels shifted once, padding only at the very end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.data import END_OF_DOCUMENT, IGNORE_LABEL
from jaxpipe.data.samples import count_samples, gather
from jaxpipe.errors import InputError


def row(length: int) -> np.ndarray:
    return (np.arange(length) % 251).astype(np.uint16)


@given(length=st.integers(2, 60), sequence_length=st.integers(1, 20))
def test_every_token_but_the_first_is_the_label_of_exactly_one_position(length, sequence_length):
    if length < sequence_length + 1:
        return
    tokens = row(length)
    count = count_samples(tokens, sequence_length, text="training")
    batch = gather(tokens, np.arange(count), sequence_length=sequence_length)
    assert batch["tokens"].shape == batch["labels"].shape == (count, sequence_length)
    assert batch["tokens"].dtype == batch["labels"].dtype == np.int32
    inputs, labels = batch["tokens"].ravel(), batch["labels"].ravel()
    valid = labels != IGNORE_LABEL
    np.testing.assert_array_equal(labels[valid], tokens[1:])
    np.testing.assert_array_equal(inputs[valid], tokens[:-1])
    assert not valid[len(tokens) - 1 :].any()
    assert (inputs[len(tokens) :] == END_OF_DOCUMENT).all()
    assert (batch["labels"][:-1] != IGNORE_LABEL).all()


def test_a_model_that_knows_the_next_token_is_perfect_and_one_that_copies_is_not():
    """Labels that are not shifted please the copier; labels that are shifted twice please neither."""
    batch = gather(np.arange(21, dtype=np.uint16), np.arange(5), sequence_length=4)
    assert (batch["tokens"] + 1 == batch["labels"]).all()
    assert (batch["tokens"] != batch["labels"]).all()


def test_the_picture_in_the_docstring():
    tokens = np.frombuffer(b"abcdefghij", np.uint8).astype(np.uint16)
    batch = gather(tokens, np.arange(count_samples(tokens, 4, text="training")), sequence_length=4)
    a, x = ord("a"), IGNORE_LABEL
    assert batch["tokens"].tolist() == [
        [a, a + 1, a + 2, a + 3],
        [a + 4, a + 5, a + 6, a + 7],
        [a + 8, a + 9, END_OF_DOCUMENT, END_OF_DOCUMENT],
    ]
    assert batch["labels"].tolist() == [
        [a + 1, a + 2, a + 3, a + 4],
        [a + 5, a + 6, a + 7, a + 8],
        [a + 9, x, x, x],
    ]


def test_rows_past_the_last_sample_have_no_labels():
    for length in (9, 10, 12, 13):
        count = count_samples(row(length), 4, text="training")
        batch = gather(row(length), np.array([0, count, count + 5]), sequence_length=4)
        assert (batch["labels"][1:] == IGNORE_LABEL).all()
        assert (batch["labels"][0] != IGNORE_LABEL).all()


def test_less_than_one_sample_is_refused_with_the_numbers():
    assert count_samples(row(9), 8, text="validation") == 1
    with pytest.raises(InputError, match="the validation text holds 8 tokens, and one sample needs 9"):
        count_samples(row(8), 8, text="validation")
