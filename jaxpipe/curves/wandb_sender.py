"""Sends a run's ``metrics.jsonl`` to Weights & Biases, from a process of its own that follows the file.

    python -m jaxpipe.curves.wandb_sender METRICS PROJECT ID NAME

On stdin comes the configuration as one line of JSON; the end of stdin is the end of the run, however that
came about: what is in the file by then is sent, and this process ends when all has arrived. So no network, no
prompt and no fault of W&B's can hold up the training.

W&B takes no step that is not above all it has, and adds nothing to one that it has. So a step is one row,
which is sent when the next step begins, or at the end unless its evaluation is still to come. When a run goes
on under its old id, what W&B has of it stays, and what it lacks is read from the file, which holds each step
once; steps that are done again have the same values, but for the seconds they took.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxpipe.curves.records import Record, numbers_of, parse_records

_LOOK_EVERY = 1.0
"""Seconds."""


class _Row(NamedTuple):
    """What is known of a step."""

    step: int
    numbers: dict[str, float]


def main(argv: Sequence[str]) -> int:
    """Send all records, from those in the file to those that come; the exit code."""
    metrics, project, run_id, name = Path(argv[0]), argv[1], argv[2], argv[3]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the run decides, and stdin tells
    config, is_over = json.loads(sys.stdin.readline()), threading.Event()
    threading.Thread(target=_wait_for_end, args=[is_over], daemon=True).start()
    run = _open_run(metrics.parent, project=project, run_id=run_id, name=name, config=config)
    is_whole = send(run, follow(metrics, is_over), lambda step: _evaluates_after(step, config["train"]))
    run.finish(exit_code=0 if is_whole else 1)
    return 0


def send(run: Any, records: Iterator[Record], evaluates_after: Callable[[int], bool]) -> bool:
    """Log the steps that W&B lacks; whether the run came to its last record."""
    first, is_whole, row = run.step, False, _Row(-1, {})
    for record in records:
        if record["step"] > row.step:
            _log(run, row)
            row = _Row(record["step"], {})
        if row.step >= first:
            row.numbers.update(numbers_of(record))
        if record.get("final"):
            run.summary["params_sha256"], is_whole = record["params_sha256"], True
    if "eval_loss" in row.numbers or not evaluates_after(row.step):
        _log(run, row)
    return is_whole


def follow(path: Path, is_over: threading.Event) -> Iterator[Record]:
    """The records of the file as they come, until ``is_over`` and all are read."""
    with path.open(encoding="utf-8") as file:
        rest = ""
        while True:
            is_last = is_over.is_set()  # asked before reading: nothing is written any more
            whole, newline, rest = (rest + file.read()).rpartition("\n")
            yield from parse_records(whole + newline, path)
            if is_last:
                return
            is_over.wait(_LOOK_EVERY)


def _log(run: Any, row: _Row) -> None:
    if row.numbers:
        run.log(row.numbers, step=row.step)


def _evaluates_after(step: int, train: Mapping[str, int]) -> bool:
    return train["eval_every"] > 0 and (step % train["eval_every"] == 0 or step == train["num_steps"])


def _open_run(directory: Path, *, project: str, run_id: str, name: str, config: dict[str, Any]) -> Any:
    import wandb

    return wandb.init(
        project=project,
        id=run_id,
        name=os.environ.get("WANDB_NAME", name),
        dir=directory,
        config=config,
        resume="allow",
        allow_val_change=True,
        settings=wandb.Settings(console="off"),
    )


def _wait_for_end(is_over: threading.Event) -> None:
    sys.stdin.read()
    is_over.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
