"""The file of measured costs: ``jaxpipe profile`` writes it; schedules, ``auto`` and ``plan`` take it.

One JSON object. Seconds are of one microbatch on one device; an action's are those of one layer and of a
stage of ``stage_layers`` layers, both measured, so that what it costs besides its layers is known, too.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from jaxpipe.errors import InputError
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.schedules.costs import LEAST

FORMAT = "jaxpipe costs 1"

REMATS = ("full", "selective", "none")

DTYPES = ("float32", "bfloat16")
"""What a model may compute in, as in ``train.compute_dtype``."""


@dataclass(frozen=True)
class ActionSeconds:
    """Seconds of each kind of action over the same layers.

    BW: B and W in one action. R: what B of full remat does again, as an action of its own; a B after it costs
    as much as that of ``none``.
    """

    F: float
    B: float
    W: float
    BW: float
    R: float


@dataclass(frozen=True)
class MeasuredCosts:
    """What was measured, and of what.

    platform, device_kind, num_devices: as JAX names them; how many of them worked.
    model: the fields of the Llama configuration.
    tokens: of a microbatch on one device; ``sequence_length`` tokens make a sequence.
    tp: devices that share a rank: seconds of actions are those of each of them.
    layer, stage: by remat.
    head: the whole head, forward and backward, of one microbatch on one device; embedding: its look-up, or
        its gradient, the mean of the two.
    message_bytes, transfer: a message, and the seconds that it takes to a neighbour; a tick of the lowered
        program sends one each way. 0 if there was one rank alone.
    tick: seconds of a tick in which no rank acts; what each tick costs besides its actions and messages.
    update_per_parameter: seconds of the optimizer for each parameter of a device.
    sharing: ``sharing[k - 1]`` is how many times as long an action takes when k devices act at once: 1 where
        each has its own hardware, more where they are emulated and share the cores. The ``tp`` devices of one
        rank are what was measured, and count as one.
    """

    platform: str
    device_kind: str
    num_devices: int
    model: Mapping[str, Any]
    compute_dtype: str
    sequence_length: int
    tokens: int
    tp: int
    stage_layers: int
    layer: Mapping[str, ActionSeconds]
    stage: Mapping[str, ActionSeconds]
    head: float
    embedding: float
    message_bytes: int
    transfer: float
    tick: float
    update_per_parameter: float
    sharing: tuple[float, ...]


def action_seconds(costs: MeasuredCosts, kind: str, *, remat: str, num_layers: float) -> float:
    """Seconds of an action over ``num_layers``: a line through the two measured lengths of stage."""
    one, all_layers = getattr(costs.layer[remat], kind), getattr(costs.stage[remat], kind)
    if costs.stage_layers == 1:
        return one * num_layers
    each = (all_layers - one) / (costs.stage_layers - 1)
    return max(one + each * (num_layers - 1), LEAST)


def to_text(costs: MeasuredCosts) -> str:
    """The text of the file."""
    return json.dumps({"format": FORMAT} | asdict(costs), indent=1) + "\n"


def read_costs(path: Path) -> MeasuredCosts:
    """``InputError`` names the file and all that is wrong with it."""
    try:
        given = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: is no JSON ({error}); `jaxpipe profile CONFIG -o {path}` writes it"
        ) from error
    return _from_json(given, path)


def _from_json(given: Any, path: Path) -> MeasuredCosts:
    if not isinstance(given, dict) or given.get("format") != FORMAT:
        raise InputError(
            f"{path}: is no file of costs in the format {FORMAT!r}; `jaxpipe profile` writes one"
        )
    missing = [field.name for field in fields(MeasuredCosts) if field.name not in given]
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}; measure again with `jaxpipe profile`")
    faults = [*_unknown_faults(given), *_number_faults(given), *_model_faults(given), *_action_faults(given)]
    if faults:
        raise InputError(f"{path}: {'; '.join(faults)}; measure again with `jaxpipe profile`")
    values = {field.name: given[field.name] for field in fields(MeasuredCosts)}
    for name in ("layer", "stage"):
        values[name] = {remat: ActionSeconds(**given[name][remat]) for remat in REMATS}
    return MeasuredCosts(**values | {"sharing": tuple(given["sharing"])})


_COUNTS = ("num_devices", "sequence_length", "tokens", "tp", "stage_layers", "message_bytes")
_SECONDS = ("head", "embedding", "transfer", "tick", "update_per_parameter")
_NAMES = ("platform", "device_kind")
_FOLLOW_FROM_OTHERS = ("num_key_value_heads", "head_dim")
"""Sizes of the model that may be null."""
_MODEL_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    *_FOLLOW_FROM_OTHERS,
)

MOST = 1e6
"""Seconds that an action may take; no device is slower, and none quicker than ``LEAST``."""


def _number_faults(given: Mapping[str, Any]) -> list[str]:
    faults = [
        f"{name}={_shown(given[name])} must be a name"
        for name in _NAMES
        if not isinstance(given[name], str) or not given[name]
    ]
    faults += [
        f"{name}={_shown(given[name])} must be a whole number of at least 1"
        for name in _COUNTS
        if not _is_count(given[name])
    ]
    faults += [
        f"{name}={_shown(given[name])} must be a number of seconds from 0 to {MOST:g}"
        for name in _SECONDS
        if not _is_number(given[name]) or not 0 <= given[name] <= MOST
    ]
    faults += [
        f"{name}={given[name]!r} must be 0, or at least {LEAST:g} seconds"
        for name in ("head", "embedding")
        if _is_number(given[name]) and 0 < given[name] < LEAST
    ]
    sharing = given["sharing"]
    are_positive = isinstance(sharing, list) and all(_is_number(k) and 0 < k <= MOST for k in sharing)
    if not are_positive or not sharing:
        faults.append(f"sharing={_shown(sharing)} must be a list of positive numbers")
    return faults


def _model_faults(given: Mapping[str, Any]) -> Iterator[str]:
    """Of sizes that no Llama can have, and of a type that none computes in: nobody measured them."""
    if given["compute_dtype"] not in DTYPES:
        yield f"compute_dtype={_shown(given['compute_dtype'])} must be one of {', '.join(DTYPES)}"
    model = given["model"]
    if not isinstance(model, dict):
        yield "model must hold the sizes of a Llama"
        return
    known = {field.name for field in fields(LlamaConfig)}
    yield from (
        f"model.{_shown(name)} is no size of a Llama; take it out" for name in model if name not in known
    )
    for name in _MODEL_SIZES:
        value = model.get(name)
        may_be_null = name not in model or name in _FOLLOW_FROM_OTHERS
        if not (value is None and may_be_null) and not _is_count(value):
            yield f"model.{name}={_shown(value)} must be a whole number of at least 1"


def _unknown_faults(given: Mapping[str, Any]) -> Iterator[str]:
    known = {"format", *(field.name for field in fields(MeasuredCosts))}
    yield from (f"{_shown(name)} is no field of it; take it out" for name in given if name not in known)


def _action_faults(given: Mapping[str, Any]) -> list[str]:
    kinds = {field.name for field in fields(ActionSeconds)}
    faults = []
    for name in ("layer", "stage"):
        for remat in REMATS:
            actions = given[name].get(remat) if isinstance(given[name], dict) else None
            if not isinstance(actions, dict) or set(actions) != kinds:
                faults.append(f"{name}.{remat} must hold {', '.join(sorted(kinds))}")
            elif not all(_is_number(value) and LEAST <= value <= MOST for value in actions.values()):
                faults.append(f"{name}.{remat} must hold numbers of seconds from {LEAST:g} to {MOST:g}")
    return faults


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _is_count(value: Any) -> bool:
    return _is_number(value) and value == int(value) and value >= 1


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= 10**18 if isinstance(value, int) else math.isfinite(value)
