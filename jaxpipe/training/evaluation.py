"""The loss on validation text, by the forward-only program; it reads the parameters and changes nothing."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import Array

from jaxpipe.data import ValidationBatches
from jaxpipe.pipeline import Batch, Tree


class Evaluation(NamedTuple):
    """``summed_loss`` is the compiled forward program, ``cut`` brings a batch to the devices."""

    summed_loss: Callable[[Tree, Batch, Tree], tuple[Array, Array]]
    batches: ValidationBatches
    cut: Callable[[dict], Batch]
    constants: Tree


def evaluate(evaluation: Evaluation, params: Tree) -> float:
    """Nats per valid token over all validation batches, each token counted once."""
    results = [
        evaluation.summed_loss(params, evaluation.cut(batch), evaluation.constants)
        for batch in evaluation.batches
    ]
    losses, counts = zip(*jax.device_get(results), strict=True)
    return float(sum(map(float, losses)) / sum(map(int, counts)))
