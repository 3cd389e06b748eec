"""Samples: windows of the row of tokens, each giving the next token as the label.

With length 4, sample i starts at token 4 i and needs one token more than it has inputs:

    row      a b c d e f g h i j            9 labels, so 3 samples
    sample 0 a b c d   -> b c d e
    sample 1 e f g h   -> f g h i
    sample 2 i j . .   -> j x x x           . END_OF_DOCUMENT, x IGNORE_LABEL

Every token but the first is the label of exactly one position; only the last sample is padded.
"""

import numpy as np
from numpy.typing import NDArray

from jaxpipe.data.tokens import END_OF_DOCUMENT, Tokens
from jaxpipe.errors import InputError

IGNORE_LABEL = -100

Batch = dict[str, NDArray[np.int32]]
"""``tokens`` and ``labels``, both [batch, sequence]."""


def count_samples(tokens: Tokens, sequence_length: int, *, text: str) -> int:
    """How many samples a row gives; ``InputError`` if not even one is whole. ``text`` names the row."""
    if len(tokens) < sequence_length + 1:
        raise InputError(
            f"the {text} text holds {len(tokens)} tokens, and one sample needs {sequence_length + 1}; "
            "give more text, a larger share of it, or a shorter data.sequence_length"
        )
    return -(-(len(tokens) - 1) // sequence_length)


def gather(tokens: Tokens, samples: NDArray[np.int64], *, sequence_length: int) -> Batch:
    """The samples with these numbers, one a row; past the last sample a row has no labels."""
    positions = samples[:, None] * sequence_length + np.arange(sequence_length + 1)
    exists = positions < len(tokens)
    window = tokens[np.minimum(positions, len(tokens) - 1)].astype(np.int32)
    return {
        "tokens": np.where(exists[:, :-1], window[:, :-1], np.int32(END_OF_DOCUMENT)),
        "labels": np.where(exists[:, 1:], window[:, 1:], np.int32(IGNORE_LABEL)),
    }
