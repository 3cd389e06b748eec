"""The next token from its logits: the most probable one, or one drawn from the nucleus.

The nucleus is the smallest set of the most probable tokens whose probabilities add up to ``top_p`` (Holtzman
et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1), after the temperature:

    p = softmax(logits / temperature)
    a token stays if those more probable than it add up to less than top_p

So the most probable token always stays, and tokens as probable as the last one that does stay, too. A draw
depends on the seed, the number of the sample and the position alone, never on the mesh or on how many samples
there are.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, UInt32

# letters of shapes: b samples, v tokens of the vocabulary

_SMALLEST_TEMPERATURE = 1e-30
"""Smaller ones draw the same, and are 0 in fp32 from 1e-38 on."""


class Sampling(NamedTuple):
    """How tokens are drawn.

    temperature: divides the logits; 0 takes the most probable token.
    top_p: above 0; 1 keeps all tokens.
    num_ids: only tokens below this are drawn; None: all of the vocabulary.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    num_ids: int | None = None


def next_tokens(
    logits: Float[Array, "b v"], sampling: Sampling, *, seed: UInt32[Array, ""], position: Int32[Array, ""]
) -> Int32[Array, " b"]:
    """The token of each sample at ``position``."""
    logits = logits[:, : sampling.num_ids]
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    # the largest becomes 0: a small temperature gives -inf elsewhere, and never inf - inf, nor 0 / 0
    temperature = max(sampling.temperature, _SMALLEST_TEMPERATURE)
    scaled = (logits - jnp.max(logits, axis=-1, keepdims=True)) / temperature
    kept = nucleus(scaled, sampling.top_p) if sampling.top_p < 1 else scaled
    key = jax.random.key(seed)

    def draw(number: Array, row: Array) -> Array:
        return jax.random.categorical(jax.random.fold_in(jax.random.fold_in(key, number), position), row)

    return jax.vmap(draw)(jnp.arange(logits.shape[0]), kept).astype(jnp.int32)


def nucleus(logits: Float[Array, "b v"], top_p: float) -> Float[Array, "b v"]:
    """The logits, -inf for all tokens outside of the nucleus."""
    falling = -jnp.sort(-logits, axis=-1)
    probabilities = jax.nn.softmax(falling, axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    # an exact 0 for the first, whatever rounding leaves of the difference
    before = before.at[:, 0].set(0.0)
    smallest = jnp.min(jnp.where(before < top_p, falling, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(logits >= smallest, logits, -jnp.inf)
