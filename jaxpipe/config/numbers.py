"""Numbers that would do, for the remedy of a message."""


def multiples(value: int, unit: int) -> list[int]:
    """The multiples of ``unit`` next to ``value``, below and above."""
    below = value // unit * unit
    return [size for size in (below, below + unit) if size > 0]


def either(numbers: list[int]) -> str:
    """``8 or 16``."""
    return " or ".join(map(str, numbers))
