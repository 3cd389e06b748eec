"""What is told of each step: a line of metrics and the progress, one step late.

The scalars of step k are waited for after step k + 1 has been given to the devices, so these never wait for
the host, and the host is never more than one step ahead of them: a signal is answered within two steps.
"""

import math
import time
from dataclasses import dataclass
from typing import TextIO

import jax

from jaxpipe.errors import NotFiniteError
from jaxpipe.training.metrics import write_metrics
from jaxpipe.training.progress import ProgressLine, show_step
from jaxpipe.training.step import StepMetrics

REMEDY = "Start again, or resume from an earlier checkpoint, with a lower optimizer.learning_rate"


class DivergedError(NotFiniteError):
    """Something of a step is not finite; the state after that step must not be saved."""


@dataclass
class StepLog:
    """The step that is in progress, and the clock since the last logged one."""

    file: TextIO
    line: ProgressLine
    log_every: int
    pending: tuple[int, StepMetrics] | None = None
    logged_at: float = 0.0
    steps_since: int = 0

    def start_clock(self) -> None:
        """Time counts from now on; to be called when an evaluation, a save or a compilation has ended."""
        self.logged_at, self.steps_since = time.perf_counter(), 0

    def add(self, step: int, metrics: StepMetrics) -> None:
        """``step`` was given to the devices: wait for the one before it, and log that."""
        self._finish(is_last=False)
        self.pending = step, metrics

    def flush(self) -> None:
        """Wait for the step in progress, and log it if that is due."""
        self._finish(is_last=True)

    def _finish(self, *, is_last: bool) -> None:
        if self.pending is None:
            return
        (step, metrics), self.pending = self.pending, None
        jax.block_until_ready(metrics)
        self.steps_since += 1
        is_due = step % self.log_every == 0 or step == self.line.num_steps
        if is_due or is_last:
            check_finite(step, loss=float(metrics.loss), gradient_norm=float(metrics.grad_norm))
        if is_due:
            self._log(step, metrics)

    def _log(self, step: int, metrics: StepMetrics) -> None:
        now = time.perf_counter()
        step_seconds = (now - self.logged_at) / self.steps_since
        tokens, loss, learning_rate = (
            int(metrics.num_tokens),
            float(metrics.loss),
            float(metrics.learning_rate),
        )
        tokens_per_second = tokens / step_seconds
        record = {
            "step": step,
            "loss": loss,
            "grad_norm": float(metrics.grad_norm),
            "learning_rate": learning_rate,
            "tokens": tokens,
            "step_seconds": step_seconds,
            "tokens_per_second": tokens_per_second,
        }
        write_metrics(self.file, record)
        show_step(
            self.line,
            step,
            loss=loss,
            learning_rate=learning_rate,
            tokens_per_second=tokens_per_second,
            step_seconds=step_seconds,
        )
        self.start_clock()


def check_finite(step: int, **values: float) -> None:
    """Raise ``DivergedError`` unless all values of this step are finite."""
    if not all(map(math.isfinite, values.values())):
        found = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
        raise DivergedError(
            f"step {step}: training must stay finite, but it has {found}; its state is not saved. {REMEDY}"
        )
