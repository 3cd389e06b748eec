"""Samples: windows of the row of tokens, each giving the next token as the label.

With length 4, sample i starts at token 4 i and needs one token more than it has inputs:

    row      a b c d e f g h i j            9 labels, so 3 samples
    sample 0 a b c d   -> b c d e
    sample 1 e f g h   -> f g h i
    sample 2 i j . .   -> j x x x           . ends a document, x IGNORE_LABEL

Every token but the first is the label of exactly one position; only the last sample is padded.

Where documents are isolated a sample also tells its segments, a document each, and the positions in them:

    sample     a b . c   -> b . x d
    segments   0 0 0 1
    positions  0 1 2 0

What ends a document belongs to it, and no label crosses from one into the next. What fills the last sample is
a segment of its own. A document that began in the sample before starts at position 0 in this one.

Of several rows (a mixture) sample numbers go on from one row to the next.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jaxpipe.data.rows import Row, as_row
from jaxpipe.data.tokens import Tokens
from jaxpipe.errors import InputError

IGNORE_LABEL = -100

DOCUMENT_ARRAYS = ("positions", "segments")
"""What a batch has besides where documents are isolated."""

Batch = dict[str, NDArray[np.int32]]
"""``tokens`` and ``labels``, and with isolation ``segments`` and ``positions``, all [batch, sequence]."""


def count_samples(tokens: Tokens | Row, sequence_length: int, *, text: str) -> int:
    """How many samples a row gives; ``InputError`` if not even one is whole. ``text`` names the row."""
    if len(tokens) < sequence_length + 1:
        raise InputError(
            f"the {text} text holds {len(tokens)} tokens, and one sample needs {sequence_length + 1}; "
            "give more text, a larger share of it, or a shorter data.sequence_length"
        )
    return _num_samples(len(tokens), sequence_length)


def gather(
    tokens: Tokens | Row | Sequence[Row],
    samples: NDArray[np.int64],
    *,
    sequence_length: int,
    isolate: bool = False,
) -> Batch:
    """The samples with these numbers, one a row; past the last sample a row has no labels.

    ``InputError`` if a file holds an id that is outside its vocabulary: it is damaged.
    """
    rows = (as_row(tokens),) if isinstance(tokens, Row | np.ndarray) else tuple(tokens)
    window = np.full((len(samples), sequence_length + 1), rows[0].end_of_document, np.uint32)
    lengths = np.zeros(len(samples), np.int64)
    ends = np.cumsum([_num_samples(len(row), sequence_length) for row in rows])
    for line, sample in enumerate(samples):
        number = min(int(np.searchsorted(ends, sample, "right")), len(rows) - 1)
        before = int(ends[number - 1]) if number else 0
        row, start = rows[number], (int(sample) - before) * sequence_length
        lengths[line] = row.read_into(window[line], start)
        _check(row, window[line], start)
    exists = np.arange(sequence_length + 1) < lengths[:, None]
    ids = window.astype(np.int32)
    inputs = np.ascontiguousarray(ids[:, :-1])
    labels = np.where(exists[:, 1:], ids[:, 1:], np.int32(IGNORE_LABEL))
    if not isolate:
        return {"tokens": inputs, "labels": labels}
    is_end = inputs == rows[0].end_of_document
    return {
        "tokens": inputs,
        "labels": np.where(is_end, np.int32(IGNORE_LABEL), labels),
        **_segments(is_end & exists[:, :-1], exists[:, :-1]),
    }


def _num_samples(num_tokens: int, sequence_length: int) -> int:
    return -(-max(num_tokens - 1, 0) // sequence_length)


def _check(row: Row, line: NDArray[np.uint32], start: int) -> None:
    if row.vocab_size is None or int(line.max()) < row.vocab_size:
        return
    place = row.place(start + int(np.argmax(line)))
    raise InputError(
        f"id {place.id} at token {place.offset:,} of {place.where} is outside the vocabulary of "
        f"{row.vocab_size}: the file is damaged; bring it back from a copy, or prepare the data once more"
    )


def _segments(is_end: NDArray[np.bool_], exists: NDArray[np.bool_]) -> Batch:
    begins = np.zeros_like(exists)
    begins[:, 1:] = is_end[:, :-1] | (exists[:, :-1] & ~exists[:, 1:])
    index = np.arange(exists.shape[1], dtype=np.int32)
    starts = np.maximum.accumulate(np.where(begins, index, np.int32(0)), axis=1)
    return {"positions": index - starts, "segments": np.cumsum(begins, axis=1, dtype=np.int32)}
