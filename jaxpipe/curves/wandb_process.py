"""The process that sends curves to Weights & Biases (wandb_sender.py), as the run sees it.

In the run's folder ``wandb``, beside W&B's own files, lie ``jaxpipe-id``, under which a run that goes on is
the same run to W&B, and ``jaxpipe.log``, which takes all that W&B prints.
"""

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ERROR = re.compile(r"^[\w.]*(?:Error|Exception): .+", flags=re.MULTILINE)
_PATIENCE = 10.0
"""Seconds that a run waits at its end for what is left to be sent; after a signal its time is limited."""


@dataclass
class WandbProcess:
    """The process, and whether its end has been told."""

    process: subprocess.Popen
    log: Path
    is_told: bool = False


@contextmanager
def open_wandb(
    metrics: Path, *, project: str, config: Mapping[str, Any], is_stopped: Callable[[], bool]
) -> Iterator[WandbProcess]:
    """Start it; at the end leave it to itself when all has been sent, or after some seconds.

    is_stopped: whether the run ends because of a signal; then it is left to itself at once.

    Raises:
        OSError: it cannot be started, or its files cannot be written.
    """
    directory = metrics.parent / "wandb"
    directory.mkdir(exist_ok=True)
    log = directory / "jaxpipe.log"
    words = [str(metrics), project, _run_id(directory / "jaxpipe-id"), metrics.parent.name]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "jaxpipe.curves.wandb_sender", *words],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a Ctrl-C is meant for the run
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, which ``find_fault`` tells
        process.stdin.write(f"{json.dumps(config)}\n".encode())
    try:
        yield WandbProcess(process, log)
    finally:
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # ``find_fault`` tells that, too
            process.wait(timeout=0 if is_stopped() else _PATIENCE)


def find_fault(sender: WandbProcess, *, is_over: bool = False) -> str | None:
    """What to say of a process that has failed, or that is still at work after the run; once."""
    code = sender.process.poll()
    if sender.is_told or code == 0 or (code is None and not is_over):
        return None
    sender.is_told = True
    if code is None:
        return (
            f"Weights & Biases has not got all curves yet; process {sender.process.pid} goes on with that, "
            f"and writes to {sender.log}"
        )
    cause = _last_error(sender.log) or f"exit code {code}"
    return (
        f"Weights & Biases gets no more curves: {cause} ({sender.log}). Training does not need it; "
        "what is missing is sent when the run is resumed"
    )


def _run_id(path: Path) -> str:
    if not path.exists():
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(secrets.token_hex(4), encoding="utf-8")
        beside.replace(path)
    return path.read_text(encoding="utf-8").strip()


def _last_error(log: Path) -> str:
    """The last line that names an exception; W&B has more to say after it."""
    errors = _ERROR.findall(log.read_text(encoding="utf-8", errors="replace"))
    return errors[-1] if errors else ""
