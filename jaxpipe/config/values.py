"""A value as it was written becomes a Python value of the key's type, or a sentence that says why not.

The type of the key decides how its text is read, so `1e-3` is a number (YAML 1.1 alone would make it
text) and a folder may be called `2024`. Nothing is converted out of kindness: 3.0, true and a quoted
"3" are no whole numbers.
"""

import re
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from jaxpipe.config.assignments import Entries, Items, Text, Value

_WHOLE_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
_NUMBER = re.compile(
    r"[-+]?([0-9]+(_[0-9]+)*\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.?inf|\.?nan", re.IGNORECASE
)
_LONGEST_WHOLE_NUMBER = 18
_BOOLS = {"true": True, "false": False}


def convert(value: Value, hint: Any) -> Any:
    """``value`` as an instance of ``hint``; ``ValueError`` says what was wanted and what was found."""
    for option in options(hint):
        found, result = _try(value, option)
        if found:
            return result
    raise ValueError(f"must be {describe(hint)}, found {_show(value)}")


def options(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, ``NoneType`` among them where null is allowed."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def is_list(hint: Any) -> bool:
    """Whether a type of ``options`` is that of a list."""
    return get_origin(hint) is tuple


def describe(hint: Any) -> str:
    """A type in words."""
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "null"}
    plurals = {int: "whole numbers", float: "numbers", str: "texts"}
    words = []
    for option in options(hint):
        if is_list(option):
            words.append(f"a list of {plurals[get_args(option)[0]]}")
        elif get_origin(option) is Literal:
            words += [str(choice) for choice in get_args(option)]
        else:
            words.append(names[option])
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _try(value: Value, option: Any) -> tuple[bool, Any]:
    """Whether ``value`` reads as this one type, and as what."""
    if option is NoneType:
        return value is None, None
    if is_list(option):
        if not isinstance(value, Items):
            return False, None
        parts = [_try(item, get_args(option)[0]) for item in value.items]
        return all(found for found, _ in parts), tuple(part for _, part in parts)
    if not isinstance(value, Text):
        return False, None
    if option is str:
        return True, value.text
    if get_origin(option) is Literal:
        matches = [choice for choice in get_args(option) if str(choice) == value.text]
        return bool(matches) and not (value.quoted and isinstance(matches[0], int)), next(iter(matches), None)
    return (False, None) if value.quoted else _try_plain(value.text, option)


def _try_plain(text: str, option: Any) -> tuple[bool, Any]:
    if option is bool:
        return text.lower() in _BOOLS, _BOOLS.get(text.lower())
    if option is int and _WHOLE_NUMBER.fullmatch(text) and len(text) <= _LONGEST_WHOLE_NUMBER:
        return True, int(text)
    if option is float and _NUMBER.fullmatch(text):
        return True, float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return False, None


def _show(value: Value) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Text):
        return f"the quoted text {value.text!r}" if value.quoted else repr(value.text)
    if isinstance(value, Entries):
        return "a mapping"
    return "the list [" + ", ".join(_show(item) for item in value.items) + "]"
