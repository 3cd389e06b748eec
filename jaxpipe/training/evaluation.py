"""The loss on validation text, by the forward-only program; it reads the parameters and changes nothing."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import Array

from jaxpipe.data import ValidationBatches
from jaxpipe.pipeline import Batch, Tree
from jaxpipe.training.stopping.interrupt import Stop


class Evaluation(NamedTuple):
    """``summed_loss`` is the forward program, ``cut`` brings a batch to the devices."""

    summed_loss: Callable[[Tree, Batch, Tree], tuple[Array, Array]]
    batches: ValidationBatches
    cut: Callable[[dict], Batch]
    constants: Tree


def evaluate(
    evaluation: Evaluation, params: Tree, stop: Stop, *, on_batch: Callable[[int], None] = lambda _: None
) -> float | None:
    """Nats per valid token over all validation batches, each token counted once; None if ``stop`` came first.

    ``on_batch`` is called with the number of each batch, from 1, before it begins.

    One batch is read back before the next is given out: a long queue of programs with collectives can
    exhaust the threads of emulated devices, which then wait for each other until XLA ends the process.
    """
    loss, num_tokens = 0.0, 0
    for number, batch in enumerate(evaluation.batches, start=1):
        if stop:
            return None
        on_batch(number)
        summed = evaluation.summed_loss(params, evaluation.cut(batch), evaluation.constants)
        batch_loss, batch_tokens = jax.device_get(summed)
        loss += float(batch_loss)
        num_tokens += int(batch_tokens)
        stop.ask()
    return loss / num_tokens
