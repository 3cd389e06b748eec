"""What a model gives the pipeline: a few pure functions and parameters in four groups.

The pipeline knows nothing of Llama. It sees a stack of equal layers between a token embedding and
a vocabulary head, and of a layer only that its linear parts go through ``dense`` (split_vjp.py).

    tokens -> embedding -> layer 0 -> ... -> layer n-1 -> final -> head -> loss

Parameters are nested dicts:

    embedding   [vocabulary, hidden]
    layers      kernels   {group: {name: [in, out]}}   a group shares its input, as q, k, v do
                small     any tree                     what dense does not use: norm scales
    final       any tree                               of ``final``
    head        [vocabulary, hidden]                   absent when it is the embedding (tied)

Every leaf under ``layers`` has leading dimensions that the executor strips before it calls ``layer``.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
from jaxtyping import Array, Float, Int32

Tree = Any
"""A pytree of arrays."""

VOCABULARY_GROUPS = ("embedding", "head")
"""Parameters whose first dimension is the vocabulary."""


Split = Literal["columns", "rows"]
"""How tensor parallelism shares a group of kernels (Shoeybi et al. 2019, "Megatron-LM", section 3).

columns: each device has some of the outputs; the input is the residual stream, the same on all.
rows: each device has some of the inputs; the output is added up over the devices, into the residual stream.
"""


class Cached(NamedTuple):
    """How a layer reads new positions of a sequence when it has kept what it needs of those before.

    layer: ``(params, x, constants, cache, place) -> (y, cache)`` with x and y ``[batch, new positions,
        hidden]``, and the cache of all layers, in which it writes at its place (cache.py); the same ``y`` as
        ``StageContract.layer`` has of these positions. It wants no extras: the sequence is one document.
    kept: ``(batch, length, tp, dtype) ->`` shapes of what one layer keeps on one device of ``tp``.
    """

    layer: Callable[[Tree, jax.Array, Tree, Tree, Any], tuple[jax.Array, Tree]]
    kept: Callable[[int, int, int, Any], Tree]


class StageContract(NamedTuple):
    """The model, as the pipeline sees it.

    layer: ``(params, x, constants, extras) -> y`` with x and y ``[batch, sequence, hidden]``;
        ``params`` holds ``kernels`` and ``small`` of one layer; ``constants`` is what is computed once
        a step (RoPE tables); ``extras`` holds this microbatch's ``Batch.extras``. Neither is differentiated.
        With tensor parallelism it sees between kernels of columns and kernels of rows its share of the
        features, and outside them, with sequence parallelism, its share of the sequence.
    final: ``(params, y) -> h``, what stands between the last layer and the head.
    splits: ``(group of kernels, how it is split)``; a group that is left out cannot be.
    cached: None of a model that cannot be decoded (decode.py).
    """

    layer: Callable[[Tree, jax.Array, Tree, Tree], jax.Array]
    final: Callable[[Tree, jax.Array], jax.Array]
    splits: frozenset[tuple[str, Split]] = frozenset()
    cached: Cached | None = None


class Batch(NamedTuple):
    """One global batch, cut into microbatches; a negative label is ignored."""

    tokens: Int32[Array, "microbatches batch sequence"]
    labels: Int32[Array, "microbatches batch sequence"]
    extras: Mapping[str, Array]
    """More arrays ``[microbatches, batch, ...]`` that layers want; may be empty."""


class LossAndGradients(NamedTuple):
    """Loss in nats per valid token of the global batch, how many those are, and d loss / d params."""

    loss: Float[Array, ""]
    num_tokens: Int32[Array, ""]
    gradients: Tree
