"""Llama (Touvron et al. 2023), one decoder layer and what stands at its ends, with no parallelism in it.

    x + attention(RMSNorm(x)), then x + SwiGLU(RMSNorm(x))

Initialisation: weights are normal with standard deviation ``initializer_range``; those that write into the
residual stream (o_proj, down_proj) are smaller by sqrt(2 num_hidden_layers), so that the stream does not
grow with depth (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3);
norm scales are 1.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int32

from jaxpipe.models.attention import Implementation, causal_attention
from jaxpipe.models.cached_attention import cached_attention
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.rope import RopeTables, rotate, tables_from
from jaxpipe.pipeline.cache import Place, remember
from jaxpipe.pipeline.contract import Tree
from jaxpipe.pipeline.split_vjp import dense


class Kernels(nnx.Param):
    """Kernels ``{name: [in, out]}`` that share their input."""


class RMSNorm(nnx.Module):
    """x / rms(x) in fp32, back in x's dtype, times the scale (Zhang and Sennrich 2019).

    That product is rounded as one in x's dtype would be, but it is fp32, so that the scale's gradient, a sum
    over tokens, is fp32 too.
    """

    def __init__(self, size: int, *, eps: float):
        self.scale = nnx.Param(jnp.ones(size))
        self.eps = eps

    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        wide = x.astype(jnp.float32)
        normal = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        scale = self.scale[...].reshape((1,) * (x.ndim - 1) + (-1,))
        rounded = normal.astype(x.dtype).astype(jnp.float32)
        return (rounded * scale.astype(jnp.float32)).astype(x.dtype)


class Attention(nnx.Module):
    """Grouped-query attention with RoPE."""

    def __init__(self, config: LlamaConfig, *, implementation: Implementation, rngs: nnx.Rngs):
        hidden, size = config.hidden_size, config.head_size
        widths = {"q_proj": config.num_attention_heads, "k_proj": config.kv_heads, "v_proj": config.kv_heads}
        std = config.initializer_range
        self.qkv = Kernels({name: _normal(rngs, std, hidden, heads * size) for name, heads in widths.items()})
        self.o = Kernels(
            {"o_proj": _normal(rngs, _output_std(config), config.num_attention_heads * size, hidden)}
        )
        self.head_size = size
        self.implementation = implementation

    def __call__(
        self, x: Float[Array, "b s d"], rope: RopeTables, segments: Int32[Array, "b s"] | None = None
    ) -> Float[Array, "b s d"]:
        q, k, v = self._project(x)
        mixed = causal_attention(
            rotate(q, rope), rotate(k, rope), v, implementation=self.implementation, segments=segments
        )
        return self._mix_heads(mixed)

    def with_cache(
        self, x: Float[Array, "b s d"], rope: RopeTables, cache: Tree, place: Place
    ) -> tuple[Float[Array, "b s d"], Tree]:
        """The same over all positions that were read, those of ``x`` included, which are at ``place``."""
        q, k, v = self._project(x)
        here = tables_from(rope, place.position, x.shape[1])
        new = {"k": jnp.swapaxes(rotate(k, here), 1, 2), "v": jnp.swapaxes(v, 1, 2)}
        cache, kept = remember(cache, new, place)
        mixed = cached_attention(rotate(q, here), kept["k"], kept["v"], place.position)
        return self._mix_heads(mixed), cache

    def _project(self, x: Float[Array, "b s d"]) -> tuple[Array, Array, Array]:
        projected = dense(x, self.qkv.get_value())
        q, k, v = (
            projected[name].reshape(*projected[name].shape[:2], -1, self.head_size)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        return q, k, v

    def _mix_heads(self, mixed: Float[Array, "b s h e"]) -> Float[Array, "b s d"]:
        return dense(mixed.reshape(*mixed.shape[:2], -1), self.o.get_value())["o_proj"]


class SwiGLU(nnx.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs):
        hidden, inner, std = config.hidden_size, config.intermediate_size, config.initializer_range
        self.gate_up = Kernels({name: _normal(rngs, std, hidden, inner) for name in ("gate_proj", "up_proj")})
        self.down = Kernels({"down_proj": _normal(rngs, _output_std(config), inner, hidden)})

    def __call__(self, x: Float[Array, "b s d"]) -> Float[Array, "b s d"]:
        inner = dense(x, self.gate_up.get_value())
        return dense(jax.nn.silu(inner["gate_proj"]) * inner["up_proj"], self.down.get_value())["down_proj"]


class DecoderLayer(nnx.Module):
    """One layer of the stack."""

    def __init__(self, config: LlamaConfig, *, implementation: Implementation, rngs: nnx.Rngs):
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config, implementation=implementation, rngs=rngs)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = SwiGLU(config, rngs=rngs)

    def __call__(
        self, x: Float[Array, "b s d"], rope: RopeTables, segments: Int32[Array, "b s"] | None = None
    ) -> Float[Array, "b s d"]:
        x = x + self.self_attn(self.input_layernorm(x), rope, segments)
        return x + self.mlp(self.post_attention_layernorm(x))

    def with_cache(
        self, x: Float[Array, "b s d"], rope: RopeTables, cache: Tree, place: Place
    ) -> tuple[Float[Array, "b s d"], Tree]:
        """The same of new positions alone, and the cache with them; see ``Attention.with_cache``."""
        mixed, cache = self.self_attn.with_cache(self.input_layernorm(x), rope, cache, place)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), cache


def _normal(rngs: nnx.Rngs, std: float, *shape: int) -> Float[Array, "in out"]:
    return std * jax.random.normal(rngs.params(), shape, jnp.float32)


def _output_std(config: LlamaConfig) -> float:
    return config.initializer_range / float(np.sqrt(2 * config.num_hidden_layers))
