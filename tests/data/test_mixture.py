"""Mixtures: each source has its share, its samples once in each of its epochs, and positions are exact."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.data import IGNORE_LABEL, Batches, validation_batches
from jaxpipe.data.mixture import source_of, whole_shares
from jaxpipe.data.rows import Row, parts_of
from jaxpipe.errors import InputError

LENGTH = 3
WEIGHTS = st.lists(st.sampled_from([0.1, 0.3, 0.7, 1, 2.5, 40]), min_size=1, max_size=4)


def numbered(sizes: list[int]) -> list[Row]:
    """Rows in which the first token of a sample tells its number, counted on from row to row."""
    numbers = np.split(np.arange(sum(sizes), dtype=np.uint16), np.cumsum(sizes)[:-1])
    return [Row(parts_of(np.repeat(some, LENGTH), name="x"), name=f"row {len(some)}") for some in numbers]


def mixed(sizes: list[int], weights: list[float], *, batch_size: int = 1, seed: int = 0) -> Batches:
    return Batches(numbered(sizes), sequence_length=LENGTH, batch_size=batch_size, seed=seed, weights=weights)


def order(batches: Batches, count: int) -> list[int]:
    return [int(number) for _ in range(count) for number in next(batches)["tokens"][:, 0]]


@given(weights=WEIGHTS, count=st.integers(1, 400))
def test_each_source_comes_as_often_as_its_weight_says_and_in_its_own_order(weights, count):
    shares = whole_shares(weights)
    found = [source_of(index, shares) for index in range(count)]
    for source, weight in enumerate(weights):
        places = [at for other, at in found if other == source]
        assert places == list(range(len(places)))
        # each split rounds once, by half a sample of what it is given
        assert abs(len(places) - count * weight / sum(weights)) <= 0.5 * len(weights)


def test_weights_are_taken_as_written_and_far_samples_are_known_at_once():
    assert whole_shares([0.7, 0.3]) == (7, 3)
    assert source_of(10**15, (7, 3)) == (0, 7 * 10**14)
    assert source_of(10**15 - 2, (7, 3)) == (1, 3 * 10**14 - 1)


@settings(deadline=None, max_examples=15)  # below some hundred samples grain takes long for each
@given(
    sizes=st.lists(st.integers(40, 90), min_size=1, max_size=3),
    batch_size=st.integers(1, 7),
    used=st.integers(0, 9),
    data=st.data(),
)
def test_every_sample_of_a_source_once_in_each_of_its_epochs_whatever_batch_and_resume(
    sizes, batch_size, used, data
):
    weights = [data.draw(st.sampled_from([0.2, 1, 3])) for _ in sizes]
    first = mixed(sizes, weights, batch_size=batch_size)
    seen = order(first, used)
    state = json.loads(json.dumps(first.get_state()))
    second = mixed(sizes, weights, batch_size=data.draw(st.integers(1, 7)))
    second.set_state(state)
    seen += order(second, 120)
    assert seen[:100] == order(mixed(sizes, weights), 100)
    starts = np.cumsum([0, *sizes])
    for source, size in enumerate(sizes):
        own = [number for number in seen if starts[source] <= number < starts[source + 1]]
        for begin in range(0, len(own) - size + 1, size):
            assert sorted(own[begin : begin + size]) == list(range(starts[source], starts[source + 1]))


def test_epochs_of_a_source_are_in_different_orders():
    seen = [number for number in order(mixed([20, 1000], [1, 1]), 160) if number < 20]
    epochs = [seen[begin : begin + 20] for begin in range(0, 80, 20)]
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_a_position_under_other_weights_is_refused():
    state = mixed([9, 9], [1, 2]).get_state()
    for other in (mixed([9, 9], [2, 1]), Batches(numbered([18])[0], sequence_length=3, batch_size=1, seed=0)):
        with pytest.raises(InputError, match=r"data\.weights was \[1, 2\] and is .*resume with the same .*"):
            other.set_state(state)


def test_a_source_that_is_too_short_is_named():
    with pytest.raises(InputError, match=r"the training 'row 1' text holds 3 tokens, and one sample needs 4"):
        mixed([9, 1], [1, 1])


@pytest.mark.parametrize(
    ("weights", "taken"), [([1, 1], [8, 8]), ([3, 1], [12, 4]), ([1, 3], [4, 12]), ([1, 100], [0, 16])]
)
def test_validation_takes_its_samples_by_weight_evenly_and_always_the_same(weights, taken):
    chosen = validation_batches(
        numbered([40, 20]), sequence_length=LENGTH, batch_size=4, num_batches=4, weights=weights
    )
    seen = [batch["tokens"][:, 0].tolist() for batch in chosen]
    assert [batch["tokens"][:, 0].tolist() for batch in chosen] == seen
    flat = [number for batch in seen for number in batch]
    assert len(set(flat)) == 16
    assert [sum(number < 40 for number in flat), sum(number >= 40 for number in flat)] == taken
    for low, high, count in ((0, 40, taken[0]), (40, 60, taken[1])):
        gaps = np.diff([*(number for number in flat if low <= number < high), high])
        assert count == 0 or gaps.max() - gaps.min() <= 1


def test_a_short_source_gives_all_it_has_for_validation_and_empty_rows_fill_the_batch():
    chosen = validation_batches(
        numbered([40, 3]), sequence_length=LENGTH, batch_size=6, num_batches=4, weights=[1, 1]
    )
    tokens = np.concatenate([batch["tokens"][:, 0] for batch in chosen])
    labels = np.concatenate([batch["labels"] for batch in chosen])
    has_labels = (labels != IGNORE_LABEL).any(axis=1)
    counts = Counter((tokens[has_labels] >= 40).tolist())
    assert counts == {False: 12, True: 3}
    assert len(chosen) == 3
