"""Batches: for training in a seeded order without end, for validation always the same ones.

Grain makes the order: a random permutation of the samples for each epoch, of which any element is
computed at once, so a run may start at any step. The order depends on the seed and the number of
samples alone; what is done with a batch, over how many ranks and microbatches, cannot change it. An
epoch's last samples share a batch with the next epoch's first: none is dropped or repeated.

Batches are made when asked for, without threads: with the tokens in memory it takes far less time
than a step, and the position is that of the batch last used.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxpipe.data.samples import Batch, count_samples, gather
from jaxpipe.data.tokens import Tokens
from jaxpipe.errors import InputError


class Batches:
    """An endless iterator of training batches with a position that can be saved and restored."""

    def __init__(self, tokens: Tokens, *, sequence_length: int, batch_size: int, seed: int) -> None:
        import grain  # loads JAX, which must wait until the configuration has been checked

        self._tokens = tokens
        self._sequence_length = sequence_length
        self._batch_size = batch_size
        self._seed = seed
        self._num_samples = count_samples(tokens, sequence_length, text="training")
        self._text = hashlib.sha256(tokens.tobytes()).hexdigest()[:16]
        self._order = grain.MapDataset.range(self._num_samples).seed(seed).shuffle().repeat()
        self._next_sample = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """``tokens`` and ``labels``, int32 [batch_size, sequence_length]."""
        end = self._next_sample + self._batch_size
        samples = np.array([self._order[index] for index in range(self._next_sample, end)], np.int64)
        self._next_sample = end
        return gather(self._tokens, samples, sequence_length=self._sequence_length)

    def get_state(self) -> dict[str, int | str]:
        """The position after the batch last used, and what its order depends on; JSON can hold it."""
        return {
            "next_sample": self._next_sample,
            "text": self._text,
            "data.sequence_length": self._sequence_length,
            "run.seed": self._seed,
        }

    def set_state(self, state: Mapping[str, int | str]) -> None:
        """Go on after that position, in constant time; ``InputError`` if it is one in another order."""
        here = self.get_state()
        differing = [name for name in here if name != "next_sample" and state[name] != here[name]]
        if differing:
            values = ", ".join(f"{name} was {state[name]} and is {here[name]}" for name in differing)
            raise InputError(
                f"a run resumes in the order of its samples, but {values}; "
                "resume with the same text, data.sequence_length and run.seed"
            )
        self._next_sample = int(state["next_sample"])


@dataclass(frozen=True, eq=False)
class ValidationBatches:
    """Batches of fixed samples in a fixed order, the same at each iteration."""

    tokens: Tokens
    samples: NDArray[np.int64]
    batch_size: int
    sequence_length: int

    def __len__(self) -> int:
        return len(self.samples) // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        for samples in self.samples.reshape(-1, self.batch_size):
            yield gather(self.tokens, samples, sequence_length=self.sequence_length)


def validation_batches(
    tokens: Tokens, *, sequence_length: int, batch_size: int, num_batches: int
) -> ValidationBatches:
    """At most ``num_batches`` batches of samples spread evenly over the text, in order.

    A text with fewer samples gives each of them once, and rows without labels fill its last batch.
    """
    available = count_samples(tokens, sequence_length, text="validation")
    wanted = min(num_batches * batch_size, available)
    samples = np.arange(wanted, dtype=np.int64) * available // wanted
    filling = np.full(-wanted % batch_size, available, np.int64)
    return ValidationBatches(tokens, np.concatenate([samples, filling]), batch_size, sequence_length)
