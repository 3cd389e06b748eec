"""The rule of ``pipeline.costs``: they must have been measured of what the run computes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxpipe.errors import InputError
from jaxpipe.planning.costs_file import read_costs

MODEL = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
"""Of the model what changes the costs of a layer and of the ends; the number of layers does not."""

SIZES = (
    "train.compute_dtype",
    "data.sequence_length",
    "mesh.tp",
    "train.global_batch_size",
    "pipeline.num_microbatches",
    "mesh.dp",
)

COSTS_KEYS = ("pipeline.costs", *(f"model.{name}" for name in MODEL), *SIZES)
"""What ``check_costs`` reads."""


def check_costs(path: str | None, *values: Any) -> Iterator[str]:
    """The file can be read, and is of these sizes."""
    if path is None:
        return
    model = dict(zip(MODEL, values[: len(MODEL)], strict=True))
    compute_dtype, sequence_length, tp, batch, num_microbatches, dp = values[len(MODEL) :]
    try:
        costs = read_costs(Path(path))
    except InputError as error:
        yield f"pipeline.costs {error}"
        return
    measured = {f"model.{name}": (_resolved(costs.model, name), _resolved(model, name)) for name in MODEL}
    measured |= {
        "train.compute_dtype": (costs.compute_dtype, compute_dtype),
        "data.sequence_length": (costs.sequence_length, sequence_length),
        "mesh.tp": (costs.tp, tp),
        "the tokens of a microbatch": (costs.tokens, batch // (num_microbatches * dp) * sequence_length),
    }
    others = [f"{name}={has}, not {wants}" for name, (has, wants) in measured.items() if has != wants]
    if others:
        yield (
            f"pipeline.costs={path!r} must be costs of this run, but was measured with {', '.join(others)}; "
            "measure again with `jaxpipe profile`"
        )


def _resolved(model: Mapping[str, Any], name: str) -> Any:
    """What null stands for."""
    value, heads = model.get(name), model.get("num_attention_heads")
    if name == "num_key_value_heads" and value is None:
        return heads
    if name == "head_dim" and value is None and heads:
        return model.get("hidden_size", 0) // heads
    return value
