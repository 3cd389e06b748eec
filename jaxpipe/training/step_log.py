"""What is told of each step: a line of metrics and the progress, one step late.

The scalars of step k are waited for after step k + 1 has been given to the devices, so these never wait for
the host, and the host is never more than one step ahead of them: a signal is answered within two steps.

Each step is looked at, also where it is not logged: one that is not finite ends the run, or is told, logged
and passed over if it was skipped (optimizer.py). Every process reads the same numbers, so all do the same.
"""

import math
import time
from dataclasses import dataclass

import jax
import numpy as np

from jaxpipe.errors import NotFiniteError
from jaxpipe.training.curves import Curves, write_record
from jaxpipe.training.non_finite import describe_non_finite
from jaxpipe.training.progress import ProgressLine, show_message, show_step
from jaxpipe.training.step import StepMetrics
from jaxpipe.training.utilization import Utilization, rate_of

REMEDY = "Start again, or resume from an earlier checkpoint, with a lower optimizer.learning_rate"


class DivergedError(NotFiniteError):
    """Something of a step is not finite; the state after that step must not be saved."""


@dataclass
class StepLog:
    """The step that is in progress, and the clock since the last logged one.

    names: of what each of a step's ``squares`` is.
    skips: the training step skips what is not finite; ``max_skipped_steps`` such steps in a row end the run.
    """

    curves: Curves
    line: ProgressLine
    log_every: int
    names: tuple[str, ...]
    skips: bool
    max_skipped_steps: int
    utilization: Utilization
    skipped_in_a_row: int = 0
    pending: tuple[int, StepMetrics] | None = None
    logged_at: float = 0.0
    steps_since: int = 0

    def start_clock(self) -> None:
        """Time counts from now on; to be called when an evaluation, a save or a compilation has ended."""
        self.logged_at, self.steps_since = time.perf_counter(), 0

    def add(self, step: int, metrics: StepMetrics) -> None:
        """``step`` was given to the devices: wait for the one before it, and log that."""
        self.flush()
        self.pending = step, metrics

    def flush(self) -> None:
        """Wait for the step in progress, and log it if that is due or it is not finite.

        Raises:
            DivergedError: it is not finite, and such a step is not skipped, or too many were in a row.
        """
        if self.pending is None:
            return
        (step, metrics), self.pending = self.pending, None
        jax.block_until_ready(metrics)
        self.steps_since += 1
        is_finite = bool(metrics.is_finite)
        if not is_finite and not self.skips:
            raise DivergedError(
                f"step {step}: training must stay finite, but it has {self._describe(metrics)}. Its state is "
                f"not saved. {REMEDY}; train.non_finite=skip passes over single steps"
            )
        if not is_finite or step % self.log_every == 0 or step == self.line.num_steps:
            self._log(step, metrics)
        self.skipped_in_a_row = 0 if is_finite else self.skipped_in_a_row + 1
        if not is_finite:
            self._tell_skipped(step, metrics)

    def _tell_skipped(self, step: int, metrics: StepMetrics) -> None:
        show_message(
            self.line,
            f"step {step}: skipped, since it has {self._describe(metrics)}. Parameters and optimizer are as "
            f"they were; {step - int(metrics.num_updates)} skipped so far",
        )
        if self.skipped_in_a_row >= self.max_skipped_steps:
            raise DivergedError(
                f"step {step}: train.max_skipped_steps={self.max_skipped_steps} ends a run that skipped so "
                f"many in a row; the last one has {self._describe(metrics)}. Its state is not saved. "
                f"{REMEDY}, or allow more"
            )

    def _describe(self, metrics: StepMetrics) -> str:
        return describe_non_finite(
            self.names,
            np.asarray(metrics.squares),
            loss=float(metrics.loss),
            grad_norm=float(metrics.grad_norm),
        )

    def _log(self, step: int, metrics: StepMetrics) -> None:
        now = time.perf_counter()
        step_seconds = (now - self.logged_at) / self.steps_since
        tokens, loss, learning_rate = (
            int(metrics.num_tokens),
            float(metrics.loss),
            float(metrics.learning_rate),
        )
        tokens_per_second = tokens / step_seconds
        rate = rate_of(self.utilization, step_seconds)
        record = {
            "step": step,
            "loss": loss,
            "grad_norm": float(metrics.grad_norm),
            "learning_rate": learning_rate,
            "tokens": tokens,
            "step_seconds": step_seconds,
            "tokens_per_second": tokens_per_second,
            "flops_per_second": rate.flops_per_second,
            **({} if rate.mfu is None else {"mfu": rate.mfu}),
            "skipped": step - int(metrics.num_updates),
        }
        write_record(self.curves, record)
        show_step(
            self.line,
            step,
            loss=loss,
            learning_rate=learning_rate,
            tokens_per_second=tokens_per_second,
            step_seconds=step_seconds,
            mfu=rate.mfu,
        )
        self.start_clock()


def check_finite(step: int, **values: float) -> None:
    """Raise ``DivergedError`` unless all values of this step are finite."""
    if not all(map(math.isfinite, values.values())):
        found = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
        raise DivergedError(
            f"step {step}: training must stay finite, but it has {found}; its state is not saved. {REMEDY}"
        )
