"""What a device holds, by formulas: near enough to search by; training/memory.py counts what is shown.

State, weights, accumulators and slots follow the same sizes as there and are exact, but for what remat
``none`` keeps; the work of a tick, and what attention holds within it, is a formula fitted to that count.
"""

from typing import NamedTuple

from jaxpipe.planning.communication import TWO_PIPES
from jaxpipe.planning.layouts import Layout, Task
from jaxpipe.planning.sizes import kernel_parameters, num_vocabularies, stage_layers, vocabulary_rows, widths
from jaxpipe.planning.tick_rows import Slots

_HEAD_TOKENS = 4096
"""Of which logits exist at a time."""

NO_SLOTS = Slots(1, 1, 1, 0)
"""The least that any schedule holds."""


class Bytes(NamedTuple):
    """On one device, by part.

    state: master weights and moments. arguments: batch and tables. weights: in the compute dtype.
    """

    state: float
    arguments: float
    weights: float
    accumulators: float
    stash: float
    messages: float
    work: float

    @property
    def total(self) -> float:
        return sum(self)


class _PerToken(NamedTuple):
    """Bytes for each token of a microbatch and layer: for B, for W from F, for W from B, and at work."""

    residuals: float
    inputs: float
    weights: float
    work: float


def estimated_bytes(task: Task, layout: Layout, slots: Slots) -> Bytes:
    """Of a layout whose schedule wants so many slots."""
    model = task.model
    hidden = model.hidden_size
    longest = max(stage_layers(task, layout))
    num_pipes = 2 if layout.schedule in TWO_PIPES else 1
    layers = layout.num_chunks * longest
    kernels = layers * kernel_parameters(model) / layout.tp
    small = layers * 2 * hidden
    vocabulary = vocabulary_rows(task, layout) * hidden
    shards, summed = layout.dp if layout.zero else 1, layout.dp if layout.zero >= 2 else 1
    tokens, each = task.tokens(layout), _per_token(task, layout)
    stash = slots.residuals * each.residuals + slots.weights * each.weights
    stash += slots.inputs * each.inputs
    message = tokens * hidden * task.itemsize / layout.shares
    weights = _weights(task, layout, kernels=kernels, small=small, vocabulary=vocabulary, pipes=num_pipes)
    of_layers, of_ends = 4 * (kernels / summed + small), 4 * (2 * vocabulary / summed + hidden)
    work = _work(task, layout, each.work * tokens, vocabulary=vocabulary)
    return Bytes(
        state=12 * ((kernels + num_vocabularies(model) * vocabulary) / shards + small + hidden),
        arguments=8 * task.sequence_length * task.global_batch / layout.dp
        + 4 * task.sequence_length * model.head_size,
        weights=weights,
        accumulators=num_pipes * (of_layers + of_ends),
        stash=stash * tokens * longest,
        messages=(slots.inbox + 1 + layout.transfer_ticks) * message,
        work=max(work, _sums(layout, of_layers, of_ends) - weights),
    )


def _sums(layout: Layout, of_layers: float, of_ends: float) -> float:
    """What gradients are added up in after the ticks, when the weights in the compute dtype are gone."""
    coming_home = of_layers if layout.schedule in TWO_PIPES else 0.0
    if layout.dp == 1 or layout.zero > 1:
        return coming_home
    return max(coming_home, (of_layers + of_ends) / (layout.dp if layout.zero == 1 else 1))


def _weights(
    task: Task, layout: Layout, *, kernels: float, small: float, vocabulary: float, pipes: int
) -> float:
    """In the compute dtype; nothing where the master weights serve."""
    are_gathered = layout.zero in (1, 2)
    shards = layout.dp if layout.zero == 3 else 1
    norms = 4 * pipes * small if are_gathered or pipes > 1 else 0.0
    of_layers = pipes * task.itemsize * kernels / shards + norms
    of_ends = num_vocabularies(task.model) * task.itemsize * vocabulary / shards
    is_cast = task.itemsize < 4
    return (of_layers if is_cast or norms else 0.0) + (of_ends if is_cast or are_gathered else 0.0)


def _per_token(task: Task, layout: Layout) -> _PerToken:
    """After pipeline/remat.py: of ``full`` the layer's input, of ``selective`` what products give, too."""
    queries, keys, hidden, inner = widths(task.model)
    size, tp, shares = task.itemsize, layout.tp, layout.shares
    stream = size * hidden / shares
    products = size * (queries + 2 * keys + 2 * inner) / tp + stream
    attended = size * queries / tp
    given = attended + size * inner / tp + 2 * stream  # inputs of the four groups of kernels
    gradients = size * (queries + 2 * keys + 2 * inner) / tp + 2 * stream
    heads = task.model.num_attention_heads / tp
    scores = 4 * heads * task.sequence_length if task.writes_scores else 0.0
    attention = scores + 8 * heads if task.writes_scores else size * queries / tp + 4 * heads
    kept = {
        "full": stream,
        "selective": stream + products,
        "none": stream + products + attention + 16,
    }[layout.remat]
    whole = 4 * hidden + (2 * size * hidden if shares > 1 else 0)  # a sum in fp32; what is gathered over tp
    work = products + gradients + 2 * size * inner / tp + whole
    if layout.remat == "none":
        left_by_f = attended if task.writes_scores else 0.0  # flash attention keeps it for B
        return _PerToken(kept, left_by_f, gradients + given - left_by_f, work + scores / 2)
    return _PerToken(kept, 0.0, gradients + given, work + given + 1.5 * scores)


def _work(task: Task, layout: Layout, of_a_layer: float, *, vocabulary: float) -> float:
    """The most that an action or an end holds at once."""
    parameters = kernel_parameters(task.model) / layout.tp
    gathered = task.itemsize * parameters if layout.zero == 3 else 0.0
    gradient = 4 * parameters
    tokens = task.tokens(layout)
    logits = 4 * vocabulary_rows(task, layout) * min(tokens, _HEAD_TOKENS)
    head = 2 * logits + 4 * vocabulary
    whole = tokens * task.model.hidden_size
    exchanged = whole * (task.itemsize + 4)
    return max(of_a_layer + gathered + gradient / 2, gradient + gathered, head, exchanged)
