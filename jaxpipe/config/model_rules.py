"""The rules of the model: heads, RoPE, and the length of its sequences."""

from collections.abc import Iterator

from jaxpipe.config.keys import keys
from jaxpipe.config.numbers import either, multiples

LLAMA3_ALONE = (
    "model.rope_scaling.low_freq_factor",
    "model.rope_scaling.high_freq_factor",
    "model.rope_scaling.original_max_position_embeddings",
)
"""What linear scaling does not read."""


def check_kv_heads(num_heads: int, num_kv_heads: int | None) -> Iterator[str]:
    """Each kv head serves as many query heads as the others."""
    if num_kv_heads is not None and num_heads % num_kv_heads:
        divisors = [count for count in range(1, num_heads + 1) if num_heads % count == 0]
        below = [count for count in divisors if count < num_kv_heads]
        near = either(below[-1:] + divisors[len(below) :][:1])
        yield (
            f"model.num_attention_heads={num_heads} must be a multiple of "
            f"model.num_key_value_heads={num_kv_heads}; use {near} of the latter"
        )


def check_head_dim(head_dim: int | None, hidden_size: int, num_heads: int) -> Iterator[str]:
    """Heads are of an even size."""
    if head_dim is not None:
        if head_dim % 2:
            yield f"model.head_dim={head_dim} must be even, since RoPE turns pairs; use {head_dim + 1}"
    elif hidden_size % (2 * num_heads):
        sizes = multiples(hidden_size, 2 * num_heads)
        yield (
            f"model.hidden_size={hidden_size} must be a multiple of 2 x model.num_attention_heads="
            f"{num_heads}, since RoPE turns pairs; use {either(sizes)}, or give model.head_dim"
        )


def check_rope_scaling(low: float, high: float, kind: str) -> Iterator[str]:
    """Of llama3 the low factor is below the high one."""
    if kind == "llama3" and low >= high:
        yield (
            f"model.rope_scaling.low_freq_factor={low} must be below "
            f"model.rope_scaling.high_freq_factor={high}; Llama 3.1 has 1 and 4"
        )


def check_linear_scaling(kind: str, *values: float) -> Iterator[str]:
    """What linear scaling does not read must be as it is by itself."""
    for path, value in zip(LLAMA3_ALONE, values, strict=True):
        if kind == "linear" and value != keys()[path].default:
            yield (
                f"model.rope_scaling.rope_type=linear does not read {path}, found {value}; "
                "leave it out, or use llama3"
            )


def check_sequence(sequence_length: int, longest: int) -> Iterator[str]:
    """No sample is longer than what the model is meant for."""
    if sequence_length > longest:
        yield (
            f"data.sequence_length={sequence_length} must be at most "
            f"model.max_position_embeddings={longest}; shorten the one or raise the other"
        )
