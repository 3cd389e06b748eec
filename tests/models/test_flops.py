"""FLOPs per token against a count of every product that the un-pipelined model makes, and by hand."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxpipe.models.flops import flops_per_token, forward_flops_per_token
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import Batch
from jaxpipe.training.reference import reference_loss, reference_loss_and_gradients

CONFIG = LlamaConfig(
    vocab_size=37,
    hidden_size=24,
    intermediate_size=20,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
)
"""No two sizes alike."""

SEQUENCE, BATCH = 7, 2


def products_of(jaxpr: Any, times: int = 1) -> Iterator[tuple[int, tuple[int, ...]]]:
    """FLOPs and shape of every matrix product, those in the body of a loop as often as it runs."""
    for equation in jaxpr.eqns:
        inner = times * (equation.params["length"] if equation.primitive.name == "scan" else 1)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.outvars[0].aval.shape
            sizes = [equation.invars[0].aval.shape[axis] for axis in contracted]
            yield 2 * math.prod(shape) * math.prod(sizes) * times, shape
        for value in equation.params.values():
            for one in value if isinstance(value, tuple | list) else [value]:
                one = getattr(one, "jaxpr", one)
                if hasattr(one, "eqns"):
                    yield from products_of(one, inner)


def counted(config: LlamaConfig, function: Any) -> int:
    """FLOPs of a program on one microbatch, by its jaxpr."""
    params = jax.eval_shape(lambda: init_llama(config, 0))
    tokens = jax.ShapeDtypeStruct((1, BATCH, SEQUENCE), jnp.int32)
    contract = llama_contract(config, "einsum")

    def program(params: Any, tokens: Any) -> Any:
        constants = llama_constants(config, SEQUENCE)
        return function(contract, params, Batch(tokens, tokens, {}), constants)

    return sum(flops for flops, _ in products_of(jax.make_jaxpr(program)(params, tokens).jaxpr))


def unseen(config: LlamaConfig) -> int:
    """What the reference computes of attention beyond the causal half: it forms all s x s scores."""
    pairs = SEQUENCE * SEQUENCE - SEQUENCE * (SEQUENCE + 1) // 2
    of_a_pair = 2 * 2 * config.num_attention_heads * config.head_size
    return BATCH * config.num_hidden_layers * of_a_pair * pairs


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, tie_word_embeddings=True),
        replace(CONFIG, num_key_value_heads=None, head_dim=None),
        replace(CONFIG, hidden_size=48, num_attention_heads=5, num_key_value_heads=1, head_dim=16),
    ],
    ids=["grouped", "tied", "plain", "one kv head"],
)
def test_the_formula_is_the_count_of_all_products_of_the_model(config: LlamaConfig) -> None:
    num_tokens = BATCH * SEQUENCE
    found = counted(config, reference_loss)
    assert found == num_tokens * forward_flops_per_token(config, SEQUENCE) + unseen(config)
    trained = counted(config, reference_loss_and_gradients)
    assert trained == num_tokens * flops_per_token(config, SEQUENCE) + 3 * unseen(config)


def test_recomputation_makes_more_products_but_counts_no_more() -> None:
    def recomputing(*arguments: Any) -> Any:
        return reference_loss_and_gradients(*arguments, recompute=True)

    assert counted(CONFIG, recomputing) > counted(CONFIG, reference_loss_and_gradients)


def test_fewer_kv_heads_save_the_products_of_keys_and_values_and_nothing_else() -> None:
    eight, two = (
        replace(CONFIG, num_attention_heads=8, head_dim=16, num_key_value_heads=count) for count in (8, 2)
    )
    saved = flops_per_token(eight, 64) - flops_per_token(two, 64)
    kernels = 2 * CONFIG.hidden_size * 16 * (8 - 2)  # weights of k and v
    assert saved == 6 * CONFIG.num_hidden_layers * kernels


def test_a_head_size_of_its_own_counts_in_kernels_and_attention() -> None:
    wide = replace(CONFIG, head_dim=20)
    more = flops_per_token(wide, SEQUENCE) - flops_per_token(CONFIG, SEQUENCE)
    kernels = 6 * 24 * (6 + 2 + 2 + 6) * 10  # q, k, v, o have 10 more columns or rows for each head
    attention = 3 * 2 * 2 * 6 * 10 * (SEQUENCE + 1) // 2
    assert more == 3 * (kernels + attention)


def test_the_head_counts_and_the_embedding_does_not() -> None:
    tied = replace(CONFIG, tie_word_embeddings=True)
    assert flops_per_token(tied, SEQUENCE) == flops_per_token(CONFIG, SEQUENCE)
    wider = replace(CONFIG, vocab_size=38)
    assert flops_per_token(wider, SEQUENCE) - flops_per_token(CONFIG, SEQUENCE) == 6 * CONFIG.hidden_size


def test_llama_3_1_8b_takes_six_flops_a_weight_and_the_attention() -> None:
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    multiplied = 8_030_261_248 - 128256 * 4096 - (2 * 32 + 1) * 4096  # without embedding and norms
    attention = 6 * 32 * 4096 * 8193  # 12 L h s, halved: each position sees half of them
    assert flops_per_token(config, 8192) == 6 * multiplied + attention
