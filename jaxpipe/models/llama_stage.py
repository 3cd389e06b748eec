"""Llama as the pipeline sees it: pure functions over nested dicts (pipeline/contract.py)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from jaxpipe.models.attention import Implementation
from jaxpipe.models.llama import DecoderLayer, Kernels, RMSNorm
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.rope import rope_frequencies, rope_tables, tables_at
from jaxpipe.pipeline.cache import Place
from jaxpipe.pipeline.contract import Cached, Split, StageContract, Tree

_SPLITS: frozenset[tuple[str, Split]] = frozenset(
    {
        ("self_attn.qkv", "columns"),
        ("self_attn.o", "rows"),
        ("mlp.gate_up", "columns"),
        ("mlp.down", "rows"),
    }
)
"""Heads and the inner features of SwiGLU over the devices of a rank; query heads follow their key heads."""


def llama_contract(config: LlamaConfig, implementation: Implementation) -> StageContract:
    """Llama's layer and final norm. Its constants are ``llama_constants``.

    Its extras, int32 ``[batch, sequence]``, isolate packed documents: ``segments``, the number of a
    position's document, and ``positions``, counted from its start. Without them a sample is one document.
    Decoding, a layer keeps its keys and values; the constants must reach as far as the cache.
    """
    abstract_layer = nnx.eval_shape(
        lambda: DecoderLayer(config, implementation=implementation, rngs=nnx.Rngs(0))
    )
    layer_graph, norm_graph = nnx.graphdef(abstract_layer), nnx.graphdef(_norm(config))

    def layer(params: Tree, x: Array, constants: Tree, extras: Tree) -> Array:
        rope = constants["rope"]
        if "positions" in extras:
            rope = tables_at(rope, extras["positions"])
        return nnx.merge(layer_graph, _layer_state(params))(x, rope, extras.get("segments"))

    def cached_layer(
        params: Tree, x: Array, constants: Tree, cache: Tree, place: Place
    ) -> tuple[Array, Tree]:
        layer = nnx.merge(layer_graph, _layer_state(params))
        return layer.with_cache(x, constants["rope"], cache, place)

    def kept(batch: int, length: int, tp: int, dtype: jnp.dtype) -> Tree:
        shape = (batch, config.kv_heads // tp, length, config.head_size)
        return dict.fromkeys(("k", "v"), jax.ShapeDtypeStruct(shape, dtype))

    def final(params: Tree, y: Array) -> Array:
        return nnx.merge(norm_graph, nnx.State({"scale": nnx.Param(params["scale"])}))(y)

    return StageContract(layer, final, _SPLITS, Cached(cached_layer, kept))


def llama_constants(config: LlamaConfig, sequence_length: int) -> Tree:
    """What every layer shares: the RoPE tables."""
    frequencies = rope_frequencies(config.head_size, theta=config.rope_theta, scaling=config.rope_scaling)
    return {"rope": rope_tables(frequencies, sequence_length)}


def init_llama(config: LlamaConfig, seed: int) -> Tree:
    """Canonical fp32 parameters. Each layer has a key of its own, so that no layout changes them."""
    key = jax.random.key(seed)

    def init_layer(index: Array) -> Tree:
        rngs = nnx.Rngs(params=jax.random.fold_in(key, index))
        return _layer_params(nnx.state(DecoderLayer(config, implementation="einsum", rngs=rngs)))

    def vocabulary(index: int) -> Array:
        shape = (config.vocab_size, config.hidden_size)
        return config.initializer_range * jax.random.normal(
            jax.random.fold_in(key, index), shape, jnp.float32
        )

    params = {
        "embedding": vocabulary(config.num_hidden_layers),
        "layers": jax.vmap(init_layer)(jnp.arange(config.num_hidden_layers)),
        "final": {"scale": jnp.ones(config.hidden_size)},
    }
    return (
        params if config.tie_word_embeddings else params | {"head": vocabulary(config.num_hidden_layers + 1)}
    )


def _norm(config: LlamaConfig) -> RMSNorm:
    return RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


def _layer_params(state: nnx.State) -> Tree:
    """A layer's state in the contract's form: ``{path: value}``, kernels and small parameters apart."""
    params: Tree = {"kernels": {}, "small": {}}
    for path, variable in nnx.to_flat_state(state):
        group = "kernels" if isinstance(variable, Kernels) else "small"
        params[group][".".join(map(str, path))] = variable.get_value()
    return params


def _layer_state(params: Tree) -> nnx.State:
    """The inverse; a group of kernels may be any tree that ``dense`` takes."""
    kernels = [(tuple(path.split(".")), Kernels(value)) for path, value in params["kernels"].items()]
    small = [(tuple(path.split(".")), nnx.Param(value)) for path, value in params["small"].items()]
    return nnx.from_flat_state(kernels + small)
