"""Evaluation: each token once, one batch at a time, and nothing after a signal."""

import signal

import jax.numpy as jnp
import pytest

from jaxpipe.training.evaluation import Evaluation, evaluate
from jaxpipe.training.stopping.interrupt import StopRequest


def make_evaluation(results, stop=None, stop_at=None):
    given = iter(results)
    outstanding = []

    def summed_loss(params, batch, constants):
        outstanding.append(batch)
        if len(outstanding) == stop_at:
            stop.received = signal.SIGTERM
        loss, count = next(given)
        return jnp.asarray(loss), jnp.asarray(count)

    return Evaluation(summed_loss, range(len(results)), lambda batch: batch, {}), outstanding


def test_the_mean_weighs_tokens_and_not_batches():
    evaluation, _ = make_evaluation([(10.0, 4), (1.0, 1), (0.0, 0), (9.0, 5)])
    assert evaluate(evaluation, {}, StopRequest()) == pytest.approx(2.0)


def test_a_signal_ends_it_after_the_batch_in_progress():
    stop = StopRequest()
    evaluation, outstanding = make_evaluation([(1.0, 1)] * 5, stop, stop_at=2)
    assert evaluate(evaluation, {}, stop) is None
    assert len(outstanding) == 2


def test_each_batch_is_told_before_it_begins():
    evaluation, outstanding = make_evaluation([(1.0, 1)] * 3)
    told = []
    evaluate(evaluation, {}, StopRequest(), on_batch=lambda number: told.append((number, len(outstanding))))
    assert told == [(1, 0), (2, 1), (3, 2)]
