"""Texts that a model continues: the programs, compiled for one prompt, and their calls.

The host asks for some tokens at a time and reads them back: it can show them, and stop. Everything between
two of these calls, the drawing too, happens on the devices.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from jaxpipe.pipeline import Tree
from jaxpipe.pipeline.decode import Decoder, Decoding, make_begin, make_extend, padded_length
from jaxpipe.pipeline.sampling import Sampling
from jaxpipe.training.global_arrays import to_devices

_TOKENS_A_CALL = 16
"""A call costs the host less than a millisecond; so many tokens are shown, or lost by a signal, at once."""


class Generation(NamedTuple):
    """What continues one prompt.

    begin, extend: compiled; see decode.py.
    prompt: ``[samples, positions]``, with ``prompt_length`` tokens in front.
    length: of the prompt and its continuation.
    """

    begin: Callable[..., Decoding]
    extend: Callable[..., Decoding]
    prompt: Array
    prompt_length: int
    length: int
    constants: Tree
    everywhere: NamedSharding


def compile_generation(
    decoder: Decoder,
    params: Tree,
    *,
    make_constants: Callable[[int], Tree],
    prompt: Sequence[int],
    num_samples: int,
    num_tokens: int,
    sampling: Sampling,
    end: int | None,
) -> Generation:
    """For parameters in stage layout like ``params``; ``make_constants`` is told how far they must reach.

    prompt: at least one token.
    """
    assert prompt, "a prompt has at least one token"
    length = len(prompt) + num_tokens
    positions = padded_length(length)
    tokens = np.zeros((num_samples, positions), np.int32)
    tokens[:, : len(prompt)] = prompt
    everywhere = NamedSharding(decoder.mesh, PartitionSpec())
    on_devices, constants = jax.tree.map(
        lambda array: to_devices(array, everywhere), (tokens, make_constants(positions))
    )
    number = jax.ShapeDtypeStruct((), np.int32, sharding=everywhere)
    seed = jax.ShapeDtypeStruct((), np.uint32, sharding=everywhere)
    lowered = jax.jit(make_begin(decoder)).lower(params, on_devices, number, constants)
    begin = lowered.compile()
    decoding = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        lowered.out_info,
        begin.output_shardings,
    )
    extend = jax.jit(make_extend(decoder, sampling, end=end), donate_argnums=1)
    compiled = extend.lower(params, decoding, number, seed, constants).compile()
    return Generation(begin, compiled, on_devices, len(prompt), length, constants, everywhere)


def generate(generation: Generation, params: Tree, *, seed: int) -> Iterator[np.ndarray]:
    """The new tokens of every sample so far, ``[samples, tokens]``, again and again until all are there.

    What is kept of the text on the devices is freed when the iterator is.
    """

    def number(value: int, dtype: type) -> Array:
        return to_devices(np.asarray(value, dtype), generation.everywhere)

    length, constants = generation.prompt_length, generation.constants
    on_devices = number(seed, np.uint32)
    decoding = generation.begin(params, generation.prompt, number(length, np.int32), constants)
    while length < generation.length:
        length = min(length + _TOKENS_A_CALL, generation.length)
        decoding = generation.extend(params, decoding, number(length, np.int32), on_devices, constants)
        tokens, reached, is_done = jax.device_get((decoding.tokens, decoding.length, decoding.is_done))
        yield tokens[:, generation.prompt_length : int(reached)]
        if is_done.all():
            return
