"""The curves of one run as points: what was logged, by name, in the order of the steps."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from jaxpipe.curves.records import Record, numbers_of

_HIGHEST = 1e100
"""A picture cannot show more: the arithmetic of its axes would overflow. No fp32 comes close."""
_UNIT = 2**1074
"""Every float is a whole number of such parts."""


class Curve(NamedTuple):
    """The finite values and their steps; and the steps at which it was not finite, or beyond 1e100."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    not_finite: tuple[int, ...]


class RunCurves(NamedTuple):
    """A run's name and what was logged of it: ``loss``, ``eval_loss``, ``grad_norm`` and so on."""

    name: str
    curves: Mapping[str, Curve]


def curves_of(records: Iterable[Record]) -> dict[str, Curve]:
    """Every number that some record has, as a curve; one that is only ever not finite is there, too."""
    points: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, value in numbers_of(record).items():
            points.setdefault(name, []).append((record["step"], value))
    return {name: _curve(found) for name, found in points.items()}


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and as many on both sides, ``window`` together; fewer towards the ends.

    The sums are exact, as whole numbers: a spike leaves no rounding error in the means that follow it.
    """
    sums = [0, *accumulate(_exact(value) for value in values)]
    reaches = [min(window // 2, index, len(values) - 1 - index) for index in range(len(values))]
    return [
        (sums[index + reach + 1] - sums[index - reach]) / (_UNIT * (2 * reach + 1))
        for index, reach in enumerate(reaches)
    ]


def _exact(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator * (_UNIT // denominator)


def _curve(points: Sequence[tuple[int, float]]) -> Curve:
    finite = [(step, value) for step, value in points if abs(value) <= _HIGHEST]  # which no NaN is
    return Curve(
        steps=tuple(step for step, _ in finite),
        values=tuple(value for _, value in finite),
        not_finite=tuple(step for step, value in points if not abs(value) <= _HIGHEST),
    )
