"""RoPE in config.json, in both of its schemas: one rope, said twice or once.

::

    old, transformers 4   "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, ...}
    new, transformers 5   "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": ...}

Old files of linear scaling say ``type`` for ``rope_type``. What is said twice must be the same. We write
both: an old transformers passes over ``rope_parameters``, and a new one takes ``rope_scaling``, which says
the same, with the ``rope_theta`` beside it.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxpipe.hugging_face.json_text import short
from jaxpipe.models.llama_config import RopeScaling

OLD_FIELDS = ("rope_theta", "rope_scaling")
NEW_FIELD = "rope_parameters"

_DEFAULT_THETA = 10000.0
_LARGEST_LENGTH = 2**31 - 1
_LENGTH = "original_max_position_embeddings"
_TYPES = ("rope_type", "type")
_NUMBERS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _LENGTH),
}
"""The fields of each type that is supported, which are all needed."""


class Rope(NamedTuple):
    """The base, and the scaling if there is any."""

    theta: float
    scaling: RopeScaling | None


def read_rope(fields: Mapping[str, Any]) -> tuple[Rope, list[str]]:
    """The rope of a config.json, and what is wrong with it; if something is, the rope means nothing."""
    faults: list[str] = []
    thetas = {"rope_theta": fields["rope_theta"]} if fields.get("rope_theta") is not None else {}
    scalings: dict[str, RopeScaling | None] = {}
    for name in ("rope_scaling", NEW_FIELD):
        said = fields.get(name)
        if said is None:
            # an old file says null where there is no scaling; a new field that is null says nothing
            scalings |= {name: None} if name in fields and name != NEW_FIELD else {}
            continue
        found = list(_dict_faults(name, said))
        faults += found
        if not found:
            thetas |= {f"{name}.rope_theta": said["rope_theta"]} if "rope_theta" in said else {}
            scalings[name] = _scaling(said)
    faults += [
        f"{name}={short(repr(theta))} must be a number above 0"
        for name, theta in thetas.items()
        if not is_number(theta) or theta <= 0
    ]
    if not faults:
        faults += _contradictions(thetas, scalings)
    theta = next(iter(thetas.values()), _DEFAULT_THETA)
    return Rope(theta, next(iter(scalings.values()), None)), faults


def write_rope(theta: float, scaling: RopeScaling | None) -> dict[str, Any]:
    """The fields of both schemas."""
    kind = "default" if scaling is None else scaling.rope_type
    said = {"rope_type": kind} | {name: getattr(scaling, name) for name in _NUMBERS[kind]}
    return {
        "rope_theta": theta,
        "rope_scaling": None if kind == "default" else said,
        NEW_FIELD: said | {"rope_theta": theta},
    }


def is_number(value: Any) -> bool:
    """What JSON calls a number, if a float can hold it, and no truth value."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and abs(value) <= sys.float_info.max


def _dict_faults(name: str, said: Any) -> Iterator[str]:
    if not isinstance(said, Mapping):
        yield f"{name}={short(repr(said))} must be an object of fields"
        return
    kind, *others = [said[key] for key in _TYPES if key in said] or ["default"]
    if any(other != kind for other in others):
        yield f"{name} says both rope_type={said['rope_type']!r} and type={said['type']!r}; keep one"
        return
    if not isinstance(kind, str) or kind not in _NUMBERS:
        yield f"{name} has rope_type {kind!r}, which is not supported; there are {', '.join(_NUMBERS)}"
        return
    known = {*_TYPES, "rope_theta", "partial_rotary_factor", *_NUMBERS[kind]}
    for key in _NUMBERS[kind]:
        if not is_number(said.get(key)):
            yield f"{name}.{key} must be a number for rope_type {kind!r}, found {short(repr(said.get(key)))}"
        elif key == _LENGTH and not (said[key] == int(said[key]) and said[key] <= _LARGEST_LENGTH):
            yield f"{name}.{key}={short(repr(said[key]))} must be a whole number of at most {_LARGEST_LENGTH}"
    for key in said:
        if key not in known:
            yield f"{name}.{key} is not known for rope_type {kind!r}, and may change the model"
    if said.get("partial_rotary_factor") not in (None, 1):
        yield f"{name}.partial_rotary_factor={said['partial_rotary_factor']!r} is not supported, only 1.0"


def _scaling(said: Mapping[str, Any]) -> RopeScaling | None:
    kind = said.get("rope_type", said.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(rope_type="linear", factor=float(said["factor"]))
    return RopeScaling(
        rope_type="llama3",
        factor=float(said["factor"]),
        low_freq_factor=float(said["low_freq_factor"]),
        high_freq_factor=float(said["high_freq_factor"]),
        original_max_position_embeddings=int(said[_LENGTH]),
    )


def _contradictions(thetas: Mapping[str, float], scalings: Mapping[str, RopeScaling | None]) -> Iterator[str]:
    """What the two schemas say must be the same."""
    if len(set(thetas.values())) > 1:
        said = " and ".join(f"{name}={theta}" for name, theta in thetas.items())
        yield f"{said} contradict each other; keep the one that is meant"
    if len(set(scalings.values())) > 1:
        said = " and ".join(f"{name} ({_words(scaling)})" for name, scaling in scalings.items())
        yield f"{said} contradict each other; keep the one that is meant"


def _words(scaling: RopeScaling | None) -> str:
    if scaling is None:
        return "no scaling"
    numbers = ", ".join(f"{name} {getattr(scaling, name):g}" for name in _NUMBERS[scaling.rope_type])
    return f"{scaling.rope_type}, {numbers}"
