"""Batches: for training in a seeded order without end, for validation always the same ones.

Grain makes the order: a random permutation of the samples for each epoch, of which any element is
computed at once, so a run may start at any step. The order depends on the seed and the number of
samples alone; what is done with a batch, over how many ranks and microbatches, cannot change it. An
epoch's last samples share a batch with the next epoch's first: none is dropped or repeated.

Of a mixture each source has such an order and epochs of its own, and the weights say which source gives
the next sample (mixture.py), so a source of little text and much weight is soon in its second epoch.

Batches are made when asked for, without threads: with the tokens in memory, or in files that the system
keeps there, it takes far less time than a step, and the position is that of the batch last used.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxpipe.data.mixture import source_of, whole_shares
from jaxpipe.data.rows import Row, as_row, digest_of
from jaxpipe.data.samples import Batch, count_samples, gather
from jaxpipe.data.tokens import Tokens
from jaxpipe.errors import InputError


class Batches:
    """An endless iterator of training batches with a position that can be saved and restored.

    ``tokens`` is one row, or with ``weights`` a row for each source. With ``isolate`` the batches tell the
    documents apart (samples.py).
    """

    def __init__(
        self,
        tokens: Tokens | Row | Sequence[Row],
        *,
        sequence_length: int,
        batch_size: int,
        seed: int,
        weights: Sequence[float] | None = None,
        isolate: bool = False,
    ) -> None:
        import grain  # loads JAX, which must wait until the configuration has been checked

        self._rows = _rows_of(tokens, weights)
        self._sequence_length = sequence_length
        self._batch_size = batch_size
        self._seed = seed
        self._weights = weights
        self._isolate = isolate
        counts = [count_samples(row, sequence_length, text=_text("training", row)) for row in self._rows]
        self._shares = whole_shares(weights or (1,))
        self._starts = [sum(counts[:number]) for number in range(len(counts))]
        self._text = digest_of(self._rows)
        self._orders = [grain.MapDataset.range(count).seed(seed).shuffle().repeat() for count in counts]
        self._next_sample = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """``tokens`` and ``labels``, int32 [batch_size, sequence_length], and more where isolated."""
        end = self._next_sample + self._batch_size
        samples = np.array([self._sample(index) for index in range(self._next_sample, end)], np.int64)
        self._next_sample = end
        return gather(self._rows, samples, sequence_length=self._sequence_length, isolate=self._isolate)

    def _sample(self, index: int) -> int:
        source, at = source_of(index, self._shares)
        return self._starts[source] + int(self._orders[source][at])

    def get_state(self) -> dict[str, Any]:
        """The position after the batch last used, and what its order depends on; JSON can hold it."""
        more: dict[str, Any] = {} if self._weights is None else {"data.weights": list(self._weights)}
        if self._isolate:
            more["data.isolate_documents"] = True
        return {
            "next_sample": self._next_sample,
            "text": self._text,
            "data.sequence_length": self._sequence_length,
            "run.seed": self._seed,
            **more,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on after that position, in constant time; ``InputError`` if it is one in another order."""
        here = self.get_state()
        names = [name for name in {**here, **state} if name != "next_sample"]
        without = {"data.isolate_documents": False}
        before, now = without | dict(state), without | here
        differing = [name for name in names if before.get(name) != now.get(name)]
        if differing:
            values = ", ".join(f"{name} was {before.get(name)} and is {now.get(name)}" for name in differing)
            more = "".join(
                f", {name}" for name in ("data.weights", "data.isolate_documents") if name in names
            )
            raise InputError(
                f"a run resumes in the order of its samples, but {values}; "
                f"resume with the same text{more}, data.sequence_length and run.seed"
            )
        self._next_sample = int(state["next_sample"])


@dataclass(frozen=True, eq=False)
class ValidationBatches:
    """Batches of fixed samples in a fixed order, the same at each iteration."""

    rows: tuple[Row, ...]
    samples: NDArray[np.int64]
    batch_size: int
    sequence_length: int
    isolate: bool = False

    def __len__(self) -> int:
        return len(self.samples) // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        for samples in self.samples.reshape(-1, self.batch_size):
            yield gather(self.rows, samples, sequence_length=self.sequence_length, isolate=self.isolate)


def validation_batches(
    tokens: Tokens | Row | Sequence[Row],
    *,
    sequence_length: int,
    batch_size: int,
    num_batches: int,
    weights: Sequence[float] | None = None,
    isolate: bool = False,
) -> ValidationBatches:
    """At most ``num_batches`` batches of samples spread evenly over the text, in order.

    A text with fewer samples gives each of them once, and rows without labels fill its last batch. Of a
    mixture each source gives its share by weight, or all it has.
    """
    rows = _rows_of(tokens, weights)
    counts = [count_samples(row, sequence_length, text=_text("validation", row)) for row in rows]
    shares = _validation_shares(num_batches * batch_size, whole_shares(weights or (1,)))
    chosen, start = [], 0
    for share, available in zip(shares, counts, strict=True):
        wanted = min(share, available)
        chosen.append(start + np.arange(wanted, dtype=np.int64) * available // max(wanted, 1))
        start += available
    samples = np.concatenate(chosen)
    filling = np.full(-len(samples) % batch_size, start, np.int64)
    return ValidationBatches(rows, np.concatenate([samples, filling]), batch_size, sequence_length, isolate)


def _validation_shares(total: int, shares: Sequence[int]) -> list[int]:
    """``total`` in whole numbers by shares: each rounded, of what those before it have left."""
    found, left = [], sum(shares)
    for share in shares:
        found.append((2 * total * share + left) // (2 * left))
        total, left = total - found[-1], left - share
    return found


def _rows_of(tokens: Tokens | Row | Sequence[Row], weights: Sequence[float] | None) -> tuple[Row, ...]:
    rows = (as_row(tokens),) if isinstance(tokens, Row | np.ndarray) else tuple(tokens)
    assert len(rows) == len(weights or (1,)), "a row for each weight"
    return rows


def _text(kind: str, row: Row) -> str:
    return f"{kind} {row.name!r}" if row.name else kind
