"""The loop of a run over its steps: train, log, evaluate, save, and stop when asked.

Metrics and evaluation of step k are on disk before checkpoint k, so that a resumed run neither repeats nor
loses a line.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO

from jaxpipe.checkpoint.checkpoints import Checkpoints
from jaxpipe.data import Batches
from jaxpipe.errors import NotFiniteError
from jaxpipe.pipeline import Batch, Tree
from jaxpipe.training.curves import write_record
from jaxpipe.training.evaluation import Evaluation, evaluate
from jaxpipe.training.generation.samples import Sampler, shown_sample, take_sample
from jaxpipe.training.metrics import write_metrics
from jaxpipe.training.params_hash import params_sha256
from jaxpipe.training.processes import is_first
from jaxpipe.training.progress import show_message
from jaxpipe.training.slotted_step import SlottedStep
from jaxpipe.training.state import TrainState, named_params
from jaxpipe.training.step_log import REMEDY, DivergedError, StepLog, check_finite
from jaxpipe.training.stopping.interrupt import Stop
from jaxpipe.training.stopping.standing import Standing
from jaxpipe.training.tick_tracing import TickTracing, run_watched


class Start(NamedTuple):
    """Where the loop starts, or a checkpoint lets it go on.

    step: how many are done.
    is_saved, is_evaluated: whether that is done with the state after this step.
    best_loss: the lowest validation loss after any step of the run, None before the first.
    """

    step: int = 0
    is_saved: bool = False
    is_evaluated: bool = False
    best_loss: float | None = None


class Loop(NamedTuple):
    """What the loop works with.

    train_step: compiled; takes over the state that it is given.
    to_canonical: the state as checkpoints hold it.
    checkpoint_info: what goes into a checkpoint besides.
    evaluation: None where there is none.
    sampler, samples: takes a sample after each evaluation, None where none is wanted; their file.
    eval_every, save_every: in steps; 0 leaves only those at the end (evaluations: none).
    saves_best: whether a validation loss below all before is a reason to save.
    standing: told what begins.
    tracing: of the step whose ticks are timed, None where none is.
    """

    train_step: SlottedStep
    constants: Tree
    batches: Batches
    cut: Callable[[dict], Batch]
    to_canonical: Callable[[TrainState], Tree]
    checkpoints: Checkpoints
    checkpoint_info: Callable[[Start], dict[str, Any]]
    evaluation: Evaluation | None
    sampler: Sampler | None
    samples: TextIO
    eval_every: int
    save_every: int
    saves_best: bool
    num_steps: int
    log: StepLog
    standing: Standing
    tracing: TickTracing | None


def run_loop(loop: Loop, state: TrainState, stop: Stop, *, start: Start) -> bool:
    """From ``start`` to ``loop.num_steps``, or until ``stop``; whether all is done, the evaluations too."""
    standing, at, loss = loop.standing, start, None
    standing.begin("the first step")
    if _evaluates_after(loop, at.step) and not at.is_evaluated:
        at = _evaluate_start(loop, state, at, stop)
    loop.log.start_clock()
    while at.step < loop.num_steps and not stop:
        standing.begin(f"step {at.step + 1}", is_timed=True)
        batch = loop.cut(next(loop.batches))
        state, metrics = _step(loop, at.step + 1, state, batch)
        at, loss = Start(at.step + 1, best_loss=at.best_loss), None
        # the step before is waited for, and each has the whole limit for itself
        standing.begin(f"the end of step {max(at.step - 1, start.step + 1)}", is_timed=True)
        loop.log.add(at.step, metrics)
        loop.checkpoints.check()
        stop.ask()
        is_best = False
        if _evaluates_after(loop, at.step):
            loss = _evaluate(loop, state, at.step, stop)
            is_best = _is_best(loss, at)
            at = at._replace(is_evaluated=loss is not None, best_loss=loss if is_best else at.best_loss)
        if (loop.save_every and at.step % loop.save_every == 0) or (loop.saves_best and is_best):
            _finish_step(loop, at.step)
            standing.begin(f"saving step {at.step}")
            _save(loop, loop.to_canonical(state), at, loss)
            at = at._replace(is_saved=True)
    _finish_step(loop, at.step)
    standing.begin(f"saving step {at.step}, the last")
    canonical = loop.to_canonical(state)
    if not at.is_saved:
        _save(loop, canonical, at, loss)
    _finish(loop, canonical, at.step)
    is_evaluated = at.is_evaluated or not _evaluates_after(loop, at.step)
    return at.step >= loop.num_steps and is_evaluated


def _step(loop: Loop, step: int, state: TrainState, batch: Batch) -> tuple[TrainState, Any]:
    if loop.tracing is None or not loop.tracing.watches(step):
        return loop.train_step(state, batch, loop.constants)
    loop.standing.begin(f"the end of step {step - 1}", is_timed=True)
    loop.log.flush()
    loop.standing.begin(f"step {step}", is_timed=True)
    return run_watched(loop.tracing, step, loop.train_step, state, batch, loop.constants)


def _evaluates_after(loop: Loop, step: int) -> bool:
    return loop.eval_every > 0 and (step % loop.eval_every == 0 or step == loop.num_steps)


def _is_best(loss: float | None, at: Start) -> bool:
    return loss is not None and loss < (math.inf if at.best_loss is None else at.best_loss)


def _known(loss: float | None) -> float | None:
    """What a checkpoint can record: None for what is not finite."""
    return loss if loss is not None and math.isfinite(loss) else None


def _evaluate_start(loop: Loop, state: TrainState, at: Start, stop: Stop) -> Start:
    """An evaluation before any step: of the initial weights, or one that a signal cut short.

    The checkpoint of that step, which was saved without its loss, gets it now; the initial weights, which
    nobody wants to keep, have none.
    """
    loss = _evaluate(loop, state, at.step, stop)
    if loss is None:
        return at
    recorded = _known(loss) if at.step else None
    at = at._replace(is_evaluated=True, best_loss=recorded if _is_best(recorded, at) else at.best_loss)
    if at.is_saved and is_first():
        loop.checkpoints.add_validation_loss(at.step, recorded, loop.checkpoint_info(at))
    return at


def _finish_step(loop: Loop, step: int) -> None:
    """Wait for the step in progress, under the limit of a step; what follows may have its slots' memory."""
    loop.standing.begin(f"the end of step {step}", is_timed=True)
    loop.log.flush()
    loop.train_step.release()


def _evaluate(loop: Loop, state: TrainState, step: int, stop: Stop) -> float | None:
    """The validation loss; None if ``stop`` came first, be it while a sample was taken."""
    _finish_step(loop, step)
    loss = None if loop.evaluation is None else _validation_loss(loop, loop.evaluation, state, step, stop)
    if loss is not None and not loop.log.skips:
        check_finite(step, validation_loss=loss)
    text = None
    if loss is not None and loop.sampler is not None:
        text = _take_sample(loop, loop.sampler, state, step, stop)
        loss = None if text is None else loss
    if loss is not None:
        _tell_evaluation(loop, step, loss, text)
    loop.log.start_clock()
    return loss


def _tell_evaluation(loop: Loop, step: int, loss: float, text: str | None) -> None:
    write_record(loop.log.curves, {"step": step, "eval_loss": loss})
    note = "" if math.isfinite(loss) else ", which is not finite; training goes on (train.non_finite=skip)"
    show_message(loop.log.line, f"step {step}: validation loss {loss:.4f} nats per token{note}")
    if loop.sampler is not None and text is not None:
        prompt = loop.sampler.prompt
        write_metrics(loop.samples, {"step": step, "prompt": prompt, "text": text})
        show_message(loop.log.line, f"step {step}: sample\n{shown_sample(prompt, text)}")


def _validation_loss(
    loop: Loop, evaluation: Evaluation, state: TrainState, step: int, stop: Stop
) -> float | None:
    def begin(number: int) -> None:
        text = f"evaluation after step {step}, batch {number} of {len(evaluation.batches)}"
        loop.standing.begin(text, is_timed=True)

    return evaluate(evaluation, state.params, stop, on_batch=begin)


def _take_sample(loop: Loop, sampler: Sampler, state: TrainState, step: int, stop: Stop) -> str | None:
    def begin(number: int) -> None:
        loop.standing.begin(f"sample after step {step}, token {number + 1}", is_timed=True)

    return take_sample(sampler, state.params, stop, step=step, on_tokens=begin)


def _save(loop: Loop, canonical: Tree, at: Start, loss: float | None) -> None:
    info = loop.checkpoint_info(at._replace(is_saved=True))
    try:
        loop.checkpoints.save(at.step, canonical, info, validation_loss=_known(loss))
    except NotFiniteError as error:
        raise DivergedError(f"{error}. {REMEDY}") from error
    loop.log.start_clock()


def _finish(loop: Loop, canonical: Tree, step: int) -> None:
    """Wait for the last checkpoint, then write the hash of the parameters: the last line of the metrics."""
    loop.checkpoints.wait()
    digest = params_sha256(named_params(canonical["params"]))
    write_record(loop.log.curves, {"final": True, "step": step, "params_sha256": digest})
    show_message(
        loop.log.line, f"step {step}: checkpoint in {loop.checkpoints.directory}, parameters {digest[:16]}"
    )
