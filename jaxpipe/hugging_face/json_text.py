"""JSON of somebody else's, read so that whoever goes through it, compares or prints it comes to an end.

Python's own reader takes nesting as deep as its stack, and raises something else beyond; what it just still
takes breaks whoever prints it. No file of a model is nested deeper than a few levels.
"""

import json
from typing import Any

_DEEPEST = 32
_LONGEST = 60


def parse_json(text: str | bytes) -> Any:
    """What the text says; ``ValueError`` if it is no JSON, is nested too deeply, or has NaN or Infinity."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
    if level:
        raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
    return value


def short(text: str) -> str:
    """Its beginning, for messages."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")
