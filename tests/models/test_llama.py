"""Llama against a float64 NumPy model written from the papers' formulas, and what must hold of any Llama."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxpipe.models.llama import RMSNorm
from jaxpipe.models.llama_config import LlamaConfig, RopeScaling
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import Batch, Tree
from jaxpipe.training.reference import reference_loss

CONFIG = LlamaConfig(
    vocab_size=37,
    hidden_size=24,
    intermediate_size=20,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    rms_norm_eps=1e-2,
    rope_theta=500.0,
    initializer_range=0.3,
)
"""No two sizes alike; an epsilon and a theta that show in the fifth digit when they are taken for others."""

VARIANTS = {
    "grouped": CONFIG,
    "tied": replace(CONFIG, tie_word_embeddings=True),
    "one-kv-head": replace(CONFIG, hidden_size=48, num_attention_heads=5, num_key_value_heads=1, head_dim=16),
    "plain": replace(CONFIG, num_key_value_heads=None, head_dim=None),
    "scaled": replace(CONFIG, rope_scaling=RopeScaling(factor=4.0, original_max_position_embeddings=32)),
}

SEQUENCE = 19


@cache
def init(config: LlamaConfig, seed: int) -> Tree:
    """Compiled as a whole, and quickly: primitive by primitive it takes seconds for every new size."""
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    return jax.jit(lambda: init_llama(config, seed)).lower().compile(options)()


def make_params(config: LlamaConfig) -> Tree:
    """Norm scales away from 1, so that leaving one out shows."""
    params, rng = init(config, 3), np.random.default_rng(0)

    def shake(leaf: jax.Array) -> jax.Array:
        return leaf + jnp.asarray(0.3 * rng.normal(size=leaf.shape), jnp.float32)

    layers = dict(params["layers"], small=jax.tree.map(shake, params["layers"]["small"]))
    return dict(params, layers=layers, final=jax.tree.map(shake, params["final"]))


def make_batch(config: LlamaConfig, *, num_microbatches: int = 2, batch: int = 2) -> Batch:
    rng = np.random.default_rng(1)
    shape = (num_microbatches, batch, SEQUENCE)
    tokens = rng.integers(0, config.vocab_size, shape)
    labels = np.where(rng.random(shape) < 0.2, -100, rng.integers(0, config.vocab_size, shape))
    return Batch(jnp.asarray(tokens, jnp.int32), jnp.asarray(labels, jnp.int32), {})


# The model in NumPy


def numpy_loss(config: LlamaConfig, params: Tree, batch: Batch) -> float:
    """The summed loss, sequence by sequence and head by head, in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    head = params["embedding"] if config.tie_word_embeddings else params["head"]
    total = 0.0
    tokens, labels = (np.asarray(leaf).reshape(-1, SEQUENCE) for leaf in (batch.tokens, batch.labels))
    for sequence, wanted in zip(tokens, labels, strict=True):
        x = params["embedding"][sequence]
        for index in range(config.num_hidden_layers):
            x = numpy_layer(config, jax.tree.map(lambda leaf, i=index: leaf[i], params["layers"]), x)
        logits = numpy_norm(config, x, params["final"]["scale"]) @ head.T
        for row, label in zip(logits, wanted, strict=True):
            if label >= 0:
                total += np.log(np.sum(np.exp(row - row.max()))) + row.max() - row[label]
    return total


def numpy_layer(config: LlamaConfig, params: Tree, x: np.ndarray) -> np.ndarray:
    kernels = {name: kernel for group in params["kernels"].values() for name, kernel in group.items()}
    normed = numpy_norm(config, x, params["small"]["input_layernorm.scale"])
    size, share = config.head_size, config.num_attention_heads // config.kv_heads
    outputs = []
    for number in range(config.num_attention_heads):
        own, shared = (slice(start * size, (start + 1) * size) for start in (number, number // share))
        q = numpy_rotate(config, normed @ kernels["q_proj"][:, own])
        k = numpy_rotate(config, normed @ kernels["k_proj"][:, shared])
        v = normed @ kernels["v_proj"][:, shared]
        mixed = np.zeros_like(q)
        for position in range(len(x)):
            scores = np.exp(q[position] @ k[: position + 1].T / np.sqrt(size))
            mixed[position] = scores / scores.sum() @ v[: position + 1]
        outputs.append(mixed)
    x = x + np.concatenate(outputs, axis=1) @ kernels["o_proj"]
    normed = numpy_norm(config, x, params["small"]["post_attention_layernorm.scale"])
    gate, up = normed @ kernels["gate_proj"], normed @ kernels["up_proj"]
    return x + (gate / (1 + np.exp(-gate)) * up) @ kernels["down_proj"]


def numpy_norm(config: LlamaConfig, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + config.rms_norm_eps) * scale


def numpy_rotate(config: LlamaConfig, x: np.ndarray) -> np.ndarray:
    """Each pair (i, i + head_dim / 2) as a complex number, turned by position times frequency."""
    half = config.head_size // 2
    angles = np.arange(len(x))[:, None] * numpy_frequencies(config)
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=1)


def numpy_frequencies(config: LlamaConfig) -> np.ndarray:
    """With the rule of Llama 3.1 pair by pair, as published in Meta's ``apply_scaling``."""
    frequencies = [
        config.rope_theta ** (-2 * pair / config.head_size) for pair in range(config.head_size // 2)
    ]
    scaling = config.rope_scaling
    if scaling is None:
        return np.array(frequencies)
    scaled = []
    for frequency in frequencies:
        wavelength = 2 * np.pi / frequency
        if wavelength < scaling.original_max_position_embeddings / scaling.high_freq_factor:
            scaled.append(frequency)
        elif wavelength > scaling.original_max_position_embeddings / scaling.low_freq_factor:
            scaled.append(frequency / scaling.factor)
        else:
            smooth = scaling.original_max_position_embeddings / wavelength - scaling.low_freq_factor
            smooth /= scaling.high_freq_factor - scaling.low_freq_factor
            scaled.append((1 - smooth) * frequency / scaling.factor + smooth * frequency)
    return np.array(scaled)


def our_loss(config: LlamaConfig, params: Tree, batch: Batch) -> float:
    contract, constants = llama_contract(config, "einsum"), llama_constants(config, SEQUENCE)
    return float(
        jax.jit(lambda *arguments: reference_loss(contract, *arguments)[0])(params, batch, constants)
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loss_is_that_of_the_formulas(variant: str) -> None:
    """To 1e-6 of the loss: fp32 against float64, whose differences average out over 60 tokens."""
    config = VARIANTS[variant]
    params, batch = make_params(config), make_batch(config)
    np.testing.assert_allclose(our_loss(config, params, batch), numpy_loss(config, params, batch), rtol=1e-6)


@pytest.mark.parametrize(
    "other",
    [
        replace(CONFIG, rms_norm_eps=1e-3),
        replace(CONFIG, rope_theta=600.0),
        VARIANTS["scaled"],
        replace(
            VARIANTS["scaled"], rope_scaling=RopeScaling(factor=8.0, original_max_position_embeddings=32)
        ),
    ],
    ids=["epsilon", "theta", "scaling", "factor"],
)
def test_what_the_config_says_reaches_the_loss(other: LlamaConfig) -> None:
    """With the same parameters: a field that is read but not used would leave the loss as it is."""
    params, batch = make_params(CONFIG), make_batch(CONFIG)
    off = abs(our_loss(other, params, batch) / our_loss(CONFIG, params, batch) - 1)
    assert off > 1e-5


# One layer


def run_layer(config: LlamaConfig, x: jax.Array, index: int = 0) -> jax.Array:
    params = jax.tree.map(lambda leaf: leaf[index], make_params(config)["layers"])
    layer = llama_contract(config, "einsum").layer
    return jax.jit(layer)(params, x, llama_constants(config, x.shape[1]), {})


def test_a_later_token_changes_no_bit_of_an_earlier_output() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, SEQUENCE, CONFIG.hidden_size)), jnp.float32)
    before = run_layer(CONFIG, x)
    for position in (1, 7, SEQUENCE - 1):
        after = run_layer(CONFIG, x.at[:, position:].add(3.0))
        np.testing.assert_array_equal(after[:, :position], before[:, :position])
        assert not np.any(np.all(after[:, position:] == before[:, position:], axis=-1))


def test_sequences_of_a_batch_know_nothing_of_each_other() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, SEQUENCE, CONFIG.hidden_size)), jnp.float32)
    before, after = run_layer(CONFIG, x), run_layer(CONFIG, x.at[1].add(3.0))
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[2], before[2])


def test_the_gradient_of_a_norm_scale_is_a_sum_in_fp32_also_in_bf16() -> None:
    """4096 terms of one sign: added up in bf16 they would be off by a percent and more. Each is rounded by up
    to 2^-9 before, which averages out to 1e-4."""
    rng = np.random.default_rng(0)
    x, dy = (jnp.asarray(np.abs(rng.normal(size=(1, 4096, 8))), jnp.bfloat16) for _ in range(2))
    norm = RMSNorm(8, eps=1e-5)
    graph, state = nnx.split(norm)
    (gradient,) = jax.vjp(lambda state: nnx.merge(graph, state)(x), state)[1](dy)
    wide = np.asarray(x, np.float64)
    normal = wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + 1e-5)
    expected = (np.asarray(dy, np.float64) * normal).sum(axis=(0, 1))
    np.testing.assert_allclose(gradient["scale"].get_value(), expected, rtol=5e-4)


def test_a_bf16_layer_stays_in_bf16() -> None:
    params = jax.tree.map(lambda leaf: leaf[0], make_params(CONFIG)["layers"])
    params["kernels"] = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params["kernels"])
    x = jnp.ones((1, SEQUENCE, CONFIG.hidden_size), jnp.bfloat16)
    y = jax.eval_shape(
        llama_contract(CONFIG, "einsum").layer, params, x, llama_constants(CONFIG, SEQUENCE), {}
    )
    assert y.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("value", "dtype"), [(1e-4, jnp.bfloat16), (300.0, jnp.float16), (-7.3, jnp.float32)]
)
def test_rms_norm_normalises_in_fp32_and_scales_in_its_own_dtype(value: float, dtype: jnp.dtype) -> None:
    """The squares of 1e-4 in bf16 and of 300 in fp16 would vanish or overflow. The order is Hugging Face's:
    fp32, back, times the scale, which its weights hold in the same dtype."""
    norm = RMSNorm(8, eps=1e-5)
    scale = np.asarray(jnp.linspace(0.3, 1.7, 8).astype(dtype).astype(jnp.float32))
    norm.scale[...] = jnp.asarray(scale)
    x = jnp.full((1, 2, 8), value, dtype)
    wide = np.asarray(x, np.float32)
    normal = wide * (1 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + np.float32(1e-5)))
    expected = np.asarray(jnp.asarray(normal).astype(dtype)) * np.asarray(jnp.asarray(scale).astype(dtype))
    got = norm(x)
    assert got.dtype == dtype
    if dtype == jnp.float32:  # 1 / sqrt may differ from rsqrt in the last bit, which 16-bit dtypes round away
        np.testing.assert_allclose(got, expected, rtol=3e-7)
    else:
        np.testing.assert_array_equal(np.asarray(got), expected)


# Initialisation


def test_weights_start_as_documented() -> None:
    """Standard deviations to 5 %, four standard errors of the smallest of these samples."""
    config = replace(CONFIG, hidden_size=96, intermediate_size=128, vocab_size=300, initializer_range=0.02)
    params = init(config, 0)
    smaller = 0.02 / np.sqrt(2 * config.num_hidden_layers)
    kernels = params["layers"]["kernels"]
    for group, expected in {
        "self_attn.qkv": 0.02,
        "self_attn.o": smaller,
        "mlp.gate_up": 0.02,
        "mlp.down": smaller,
    }.items():
        for name, kernel in kernels[group].items():
            assert kernel.dtype == jnp.float32
            np.testing.assert_allclose(np.std(kernel), expected, rtol=0.05, err_msg=name)
            assert abs(np.mean(kernel)) < 0.05 * expected, name
    for group in ("embedding", "head"):
        np.testing.assert_allclose(np.std(params[group]), 0.02, rtol=0.05)
    for scale in jax.tree.leaves((params["final"], params["layers"]["small"])):
        assert np.all(np.asarray(scale) == 1)


def test_no_two_weights_start_alike() -> None:
    params = init(CONFIG, 0)
    rows = [params["embedding"][0], params["head"][0]]
    for leaf in jax.tree.leaves(params["layers"]["kernels"]):
        rows += list(leaf[:, 0])
    assert len({np.asarray(row[:10]).tobytes() for row in rows}) == len(rows)


def test_weights_depend_on_the_seed_and_on_nothing_else() -> None:
    first, again, other = init(CONFIG, 0), init.__wrapped__(CONFIG, 0), init(CONFIG, 1)
    for path, leaf in jax.tree.leaves_with_path(first):
        name = jax.tree_util.keystr(path)
        same, different = (dict(jax.tree.leaves_with_path(tree))[path] for tree in (again, other))
        np.testing.assert_array_equal(leaf, same, err_msg=name)
        assert "scale" in name or not np.any(leaf == different), name


def test_a_layer_starts_the_same_whatever_follows_it() -> None:
    """A key for each layer: of a deeper model only output projections differ, by their documented factor."""
    deep = init(replace(CONFIG, num_hidden_layers=12), 0)["layers"]["kernels"]
    for group, kernels in init(CONFIG, 0)["layers"]["kernels"].items():
        factor = 2.0 if group in ("self_attn.o", "mlp.down") else 1.0
        for name, kernel in kernels.items():
            np.testing.assert_allclose(kernel, factor * deep[group][name][:3], rtol=1e-6)


def test_tied_models_have_one_table() -> None:
    assert "head" not in init(VARIANTS["tied"], 0)
    assert "head" in init(CONFIG, 0)


def test_kernels_have_the_sizes_of_the_config() -> None:
    kernels = init(VARIANTS["one-kv-head"], 0)["layers"]["kernels"]
    shapes = {name: kernel.shape[1:] for group in kernels.values() for name, kernel in group.items()}
    assert shapes == {
        "q_proj": (48, 80),
        "k_proj": (48, 16),
        "v_proj": (48, 16),
        "o_proj": (80, 48),
        "gate_proj": (48, 20),
        "up_proj": (48, 20),
        "down_proj": (20, 48),
    }
