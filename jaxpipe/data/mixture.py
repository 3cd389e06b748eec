"""Which source gives the next sample, where several are mixed by weights.

The sources are split off one by one: of the first k samples the first source has its share, rounded to the
nearest whole number, and of the others the second source has its share of what is left, and so on. All is in
whole numbers, so any sample's source is known at once, and each source comes as evenly as can be.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

Shares = tuple[int, ...]


def whole_shares(weights: Sequence[float]) -> Shares:
    """Whole numbers that are to each other as the weights are, as written: 0.7 and 0.3 are 7 and 3."""
    exact = [Fraction(repr(float(weight))) for weight in weights]
    unit = lcm(*(weight.denominator for weight in exact))
    return tuple(int(weight * unit) for weight in exact)


def source_of(index: int, shares: Shares) -> tuple[int, int]:
    """The source of sample ``index``, and how many samples of that source come before it."""
    left = sum(shares)
    for source, share in enumerate(shares[:-1]):
        before, behind = _rounded(index * share, left), _rounded((index + 1) * share, left)
        if behind > before:
            return source, before
        index, left = index - before, left - share
    return len(shares) - 1, index


def _rounded(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)
