"""How far two models are apart, by their logits on the same tokens."""

from typing import NamedTuple

import numpy as np


class LogitsDifference(NamedTuple):
    """Of ``other`` from ``one``.

    largest: the largest absolute difference of two logits.
    size: the largest absolute logit of ``one``.
    kl: KL(one || other) of the next token, nats, the mean over the tokens.
    num_agreeing: the tokens after which both have the same likeliest next one.
    """

    largest: float
    size: float
    kl: float
    num_agreeing: int


def logits_difference(one: np.ndarray, other: np.ndarray) -> LogitsDifference:
    """Of logits [batch, sequence, vocabulary] both; row by row, in fp64."""
    rows = [_row(*pair) for pair in zip(_rows(one), _rows(other), strict=True)]
    largest, sizes, kls, agreeing = (np.array(column) for column in zip(*rows, strict=True))
    return LogitsDifference(float(largest.max()), float(sizes.max()), float(kls.mean()), int(agreeing.sum()))


def _rows(logits: np.ndarray) -> np.ndarray:
    return logits.reshape(-1, logits.shape[-1])


def _row(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float, bool]:
    one, other = one.astype(np.float64), other.astype(np.float64)
    logs = [row - row.max() for row in (one, other)]
    logs = [row - np.log(np.exp(row).sum()) for row in logs]
    kl = np.sum(np.exp(logs[0]) * (logs[0] - logs[1]))
    return np.abs(one - other).max(), np.abs(one).max(), kl, one.argmax() == other.argmax()
