"""The loop of a run over its steps: train, log, evaluate, save, and stop when asked.

Metrics and evaluation of step k are on disk before checkpoint k, so that a resumed run neither repeats nor
loses a line.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from jaxtyping import Array, Float

from jaxpipe.checkpoint import Checkpoints
from jaxpipe.data import Batches
from jaxpipe.pipeline import Batch, Tree
from jaxpipe.training.evaluation import Evaluation, evaluate
from jaxpipe.training.interrupt import Stop
from jaxpipe.training.metrics import write_metrics
from jaxpipe.training.params_hash import params_sha256
from jaxpipe.training.progress import show_message
from jaxpipe.training.standing import Standing
from jaxpipe.training.state import TrainState, named_params
from jaxpipe.training.step_log import StepLog, check_finite


class Loop(NamedTuple):
    """What the loop works with.

    train_step: compiled; takes over the state that it is given.
    to_canonical: the state as checkpoints hold it.
    checkpoint_info: what goes into a checkpoint besides.
    evaluation: None where there is none.
    eval_every, save_every: in steps; 0 leaves only those at the end (evaluations: none).
    standing: told what begins.
    """

    train_step: Callable[[TrainState, Batch, Tree], tuple[TrainState, Any]]
    constants: Tree
    batches: Batches
    cut: Callable[[dict], Batch]
    to_canonical: Callable[[TrainState], Tree]
    checkpoints: Checkpoints
    checkpoint_info: Callable[[], dict[str, Any]]
    evaluation: Evaluation | None
    eval_every: int
    save_every: int
    num_steps: int
    log: StepLog
    standing: Standing


def run_loop(loop: Loop, state: TrainState, stop: Stop, *, start: int, is_saved: bool) -> int:
    """Steps ``start + 1`` to ``loop.num_steps``, or until ``stop``; the last step that was done.

    ``is_saved``: there is a checkpoint of step ``start``.
    """
    standing = loop.standing
    standing.begin("the first step")
    step, saved = start, start if is_saved else -1
    if not is_saved:
        _evaluate(loop, state, step, stop)
    loop.log.start_clock()
    while step < loop.num_steps and not stop:
        standing.begin(f"step {step + 1}", is_timed=True)
        batch = loop.cut(next(loop.batches))
        state, metrics = loop.train_step(state, batch, loop.constants)
        step += 1
        # the step before is waited for, and each has the whole limit for itself
        standing.begin(f"the end of step {max(step - 1, start + 1)}", is_timed=True)
        loop.log.add(step, metrics)
        stop.ask()
        is_last = step == loop.num_steps
        if loop.eval_every and (is_last or step % loop.eval_every == 0):
            _evaluate(loop, state, step, stop)
        if loop.save_every and step % loop.save_every == 0:
            _finish_step(loop, step)
            standing.begin(f"saving step {step}")
            _save(loop, state, step)
            saved = step
    _finish_step(loop, step)
    standing.begin(f"saving step {step}, the last")
    if saved < step:
        _save(loop, state, step)
    _finish(loop, state, step)
    return step


def _finish_step(loop: Loop, step: int) -> None:
    """Wait for the step in progress, under the limit of a step."""
    loop.standing.begin(f"the end of step {step}", is_timed=True)
    loop.log.flush()


def _evaluate(loop: Loop, state: TrainState, step: int, stop: Stop) -> None:
    _finish_step(loop, step)
    loss = None if loop.evaluation is None else _validation_loss(loop, loop.evaluation, state, step, stop)
    if loss is not None:
        check_finite(step, validation_loss=loss)
        write_metrics(loop.log.file, {"step": step, "eval_loss": loss})
        show_message(loop.log.line, f"step {step}: validation loss {loss:.4f} nats per token")
    loop.log.start_clock()


def _validation_loss(
    loop: Loop, evaluation: Evaluation, state: TrainState, step: int, stop: Stop
) -> float | None:
    def begin(number: int) -> None:
        text = f"evaluation after step {step}, batch {number} of {len(evaluation.batches)}"
        loop.standing.begin(text, is_timed=True)

    return evaluate(evaluation, state.params, stop, on_batch=begin)


def _save(loop: Loop, state: TrainState, step: int) -> None:
    loop.log.flush()
    canonical = loop.to_canonical(state)
    check_finite(step, parameter_norm=float(_norm(canonical["params"])))
    loop.checkpoints.save(step, canonical, loop.checkpoint_info())
    loop.log.start_clock()


@jax.jit
def _norm(params: Tree) -> Float[Array, ""]:
    return optax.tree.norm(params)


def _finish(loop: Loop, state: TrainState, step: int) -> None:
    """Wait for the last checkpoint, then write the hash of the parameters: the last line of the metrics."""
    loop.checkpoints.wait()
    digest = params_sha256(named_params(loop.to_canonical(state)["params"]))
    write_metrics(loop.log.file, {"final": True, "step": step, "params_sha256": digest})
    show_message(
        loop.log.line, f"step {step}: checkpoint in {loop.checkpoints.directory}, parameters {digest[:16]}"
    )
