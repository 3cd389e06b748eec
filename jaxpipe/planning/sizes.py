"""Counts of which bytes and seconds are made: parameters of a layer, rows of the vocabulary, layers."""

from typing import NamedTuple

from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.planning.layouts import Layout, Task
from jaxpipe.schedules import balanced_layers


class Widths(NamedTuple):
    """Features: of queries, of keys (values are as wide), of the residual stream, inside SwiGLU."""

    queries: int
    keys: int
    hidden: int
    inner: int


def widths(model: LlamaConfig) -> Widths:
    """Of all devices of a rank together."""
    return Widths(
        model.num_attention_heads * model.head_size,
        model.kv_heads * model.head_size,
        model.hidden_size,
        model.intermediate_size,
    )


def kernel_parameters(model: LlamaConfig) -> int:
    """Of one layer, without its norms."""
    queries, keys, hidden, inner = widths(model)
    return 2 * hidden * (queries + keys) + 3 * hidden * inner


def vocabulary_rows(task: Task, layout: Layout) -> int:
    """Of this device; the vocabulary is padded to a multiple of the devices."""
    return -(-task.model.vocab_size // (layout.pp * layout.tp))


def num_vocabularies(model: LlamaConfig) -> int:
    """Embedding and head, or one array for both."""
    return 1 if model.tie_word_embeddings else 2


def stage_layers(task: Task, layout: Layout) -> tuple[int, ...]:
    """Layers of each stage."""
    return balanced_layers(task.model.num_hidden_layers, layout.num_stages)


def device_parameters(task: Task, layout: Layout) -> int:
    """Kernels and vocabulary that a device has room for, before ZeRO shards them."""
    layers = layout.num_chunks * max(stage_layers(task, layout))
    kernels = layers * kernel_parameters(task.model) // layout.tp
    vocabulary = vocabulary_rows(task, layout) * task.model.hidden_size
    return kernels + num_vocabularies(task.model) * vocabulary
