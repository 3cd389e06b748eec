"""The rules of the mesh: how many devices, and what they divide."""

import math
from collections.abc import Iterator

from jaxpipe.config.numbers import either, multiples

_MOST_DEVICES = 65_536


def check_mesh(dp: int, pp: int, tp: int) -> Iterator[str]:
    """There are no meshes of more devices than anybody has."""
    if dp * pp * tp > _MOST_DEVICES:
        yield (
            f"mesh.dp={dp} x mesh.pp={pp} x mesh.tp={tp} = {dp * pp * tp} devices must be at most "
            f"{_MOST_DEVICES}; use fewer"
        )


def check_tensor_parallelism(
    tp: int, num_heads: int, num_kv_heads: int | None, intermediate_size: int
) -> Iterator[str]:
    """``tp`` divides heads, kv heads and the features of SwiGLU."""
    shared = {
        "model.num_attention_heads": num_heads,
        "model.num_key_value_heads": num_kv_heads,
        "model.intermediate_size": intermediate_size,
    }
    for key, size in shared.items():
        if size is not None and size % tp:
            common = math.gcd(*(size for size in shared.values() if size is not None))
            fitting = [count for count in range(1, min(common, 64) + 1) if common % count == 0]
            yield (
                f"{key}={size} must be a multiple of mesh.tp={tp}, since a device has whole heads and "
                f"as many features as the others; mesh.tp may be {either(fitting)}"
            )


def check_sequence_parallel(sequence_parallel: bool, tp: int, sequence_length: int) -> Iterator[str]:
    """It has something to split, and splits it evenly."""
    if sequence_parallel and tp == 1:
        yield "mesh.sequence_parallel splits the sequence over mesh.tp=1, which changes nothing; leave it out"
    elif sequence_parallel and sequence_length % tp:
        yield (
            f"data.sequence_length={sequence_length} must be a multiple of mesh.tp={tp} with "
            f"mesh.sequence_parallel; use {either(multiples(sequence_length, tp))}"
        )


def check_zero(zero: int, dp: int, hidden_size: int) -> Iterator[str]:
    """With ZeRO ``dp`` divides the residual stream."""
    if zero and hidden_size % dp:
        yield (
            f"model.hidden_size={hidden_size} must be a multiple of mesh.dp={dp} with mesh.zero={zero}, "
            f"which splits it; use mesh.zero=0, or mesh.dp={either([_divisor_below(hidden_size, dp)])}"
        )


def _divisor_below(size: int, limit: int) -> int:
    return next(count for count in range(limit, 0, -1) if size % count == 0)
