"""The order of the samples: it depends on the seed alone, and a saved position is exact."""

import json
import time

import numpy as np
import pytest

from jaxpipe.data import IGNORE_LABEL, Batches, validation_batches
from jaxpipe.errors import InputError

LENGTH = 4


def numbered(num_samples: int) -> np.ndarray:
    """Tokens in which the first token of a sample tells its number."""
    return np.repeat(np.arange(num_samples), LENGTH)[: num_samples * LENGTH].astype(np.uint16)


def batches(num_samples: int, *, batch_size: int, seed: int = 0) -> Batches:
    return Batches(numbered(num_samples), sequence_length=LENGTH, batch_size=batch_size, seed=seed)


def order(source: Batches, count: int) -> list[int]:
    """The numbers of the samples in the next ``count`` batches."""
    return [int(number) for _ in range(count) for number in next(source)["tokens"][:, 0]]


@pytest.mark.parametrize("num_samples", [7, 16, 37])
def test_each_epoch_holds_every_sample_once_in_an_order_of_its_own(num_samples):
    """Also where the batch does not divide the epoch: nothing is dropped, nothing is repeated."""
    seen = order(batches(num_samples, batch_size=3), num_samples)
    epochs = [seen[index : index + num_samples] for index in range(0, len(seen), num_samples)]
    assert len(epochs) == 3
    assert all(sorted(epoch) == list(range(num_samples)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert all(epoch != sorted(epoch) for epoch in epochs)


def test_the_seed_decides_the_order():
    assert order(batches(50, batch_size=5), 20) == order(batches(50, batch_size=5), 20)
    assert order(batches(50, batch_size=5), 20) != order(batches(50, batch_size=5, seed=1), 20)
    assert len(order(batches(50, batch_size=5, seed=2**32 - 1), 1)) == 5


def test_the_order_of_samples_does_not_depend_on_the_size_of_a_batch():
    """So neither on dp nor on num_microbatches, which only say how a batch is cut up."""
    whole = order(batches(37, batch_size=24), 5)
    for batch_size in (1, 2, 3, 8, 12):
        assert order(batches(37, batch_size=batch_size), 120 // batch_size) == whole


@pytest.mark.parametrize("used", [0, 1, 3, 12, 13, 25])
def test_a_restored_position_goes_on_exactly_after_the_batch_last_used(used):
    """Also within the second and third epoch, and when restored twice."""
    source = batches(37, batch_size=3)
    order(source, used)
    state = json.loads(json.dumps(source.get_state()))
    expected = [next(source) for _ in range(30)]
    for _ in range(2):
        again = batches(37, batch_size=3)
        next(again)
        again.set_state(state)
        assert again.get_state() == state
        for batch in expected:
            for name, array in next(again).items():
                np.testing.assert_array_equal(array, batch[name])


def test_asking_for_the_position_does_not_move_it():
    source, other = batches(37, batch_size=3), batches(37, batch_size=3)
    seen = []
    for _ in range(10):
        source.get_state()
        seen += order(source, 1)
    assert seen == order(other, 10)


def test_samples_used_are_batch_size_times_steps():
    source = batches(37, batch_size=5)
    for step in range(20):
        assert source.get_state()["next_sample"] == 5 * step
        next(source)


def test_a_position_may_be_resumed_with_another_batch_size():
    source = batches(37, batch_size=6)
    seen = order(source, 4)
    other = batches(37, batch_size=4)
    other.set_state(source.get_state())
    assert seen + order(other, 9) == order(batches(37, batch_size=6), 10)


def test_resuming_at_step_1_000_000_is_as_fast_as_starting():
    """A million batches of 32 are 320 times the samples here; counting them up would take a minute."""
    source = batches(100_000 // 2, batch_size=32)
    started = time.perf_counter()
    source.set_state(source.get_state() | {"next_sample": 32_000_000})
    batch = next(source)
    assert time.perf_counter() - started < 1
    assert batch["tokens"].shape == (32, LENGTH)


def test_a_position_in_another_text_or_another_order_is_refused():
    state = batches(37, batch_size=3).get_state()
    with pytest.raises(InputError, match=r"text was \w+ and is"):
        batches(38, batch_size=3).set_state(state)
    with pytest.raises(InputError, match=r"run\.seed was 0 and is 1"):
        batches(37, batch_size=3, seed=1).set_state(state)


def test_too_little_text_is_refused_when_the_batches_are_made():
    with pytest.raises(InputError, match="the training text holds 4 tokens, and one sample needs 5"):
        Batches(np.zeros(4, np.uint16), sequence_length=4, batch_size=1, seed=0)
    with pytest.raises(InputError, match="the validation text holds 0 tokens"):
        validation_batches(np.zeros(0, np.uint16), sequence_length=4, batch_size=1, num_batches=1)


@pytest.mark.parametrize(("num_batches", "batch_size"), [(1, 1), (2, 3), (5, 4), (1, 37)])
def test_validation_takes_fixed_samples_spread_over_the_text_in_order(num_batches, batch_size):
    chosen = validation_batches(
        numbered(37), sequence_length=LENGTH, batch_size=batch_size, num_batches=num_batches
    )
    seen = [batch["tokens"][:, 0].tolist() for batch in chosen]
    assert [batch["tokens"][:, 0].tolist() for batch in chosen] == seen
    assert len(chosen) == len(seen) == num_batches
    flat = [number for numbers in seen for number in numbers]
    assert len(set(flat)) == num_batches * batch_size
    assert flat == sorted(flat)
    gaps = np.diff([*flat, 37])
    assert gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize("batch_size", [1, 5, 8, 37, 50])
def test_a_short_validation_text_gives_every_label_once_whatever_the_batch_size(batch_size):
    tokens = numbered(37)
    chosen = validation_batches(tokens, sequence_length=LENGTH, batch_size=batch_size, num_batches=100)
    labels = np.concatenate([batch["labels"].ravel() for batch in chosen])
    assert all(batch["labels"].shape == (batch_size, LENGTH) for batch in chosen)
    np.testing.assert_array_equal(labels[labels != IGNORE_LABEL], tokens[1:])
