"""PyTorch's pipelining as one more program that takes turns: a process for each rank, which waits to be told.

The workers (torch_worker.py) live as long as the ``with`` block, step when told, and block in a read in
between, so that they take no time from the others' turns. They meet through a file: no port is taken.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from jaxpipe.models.llama_config import LlamaConfig

ROOT = Path(__file__).parents[1]

SCHEDULES = ("1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
"""PyTorch's names of those that were tried; the first is what our steps are held against."""


class Experiment(NamedTuple):
    """What the ranks run together; ``remat`` is full or none (PyTorch has no counterpart of selective)."""

    schedule: str
    microbatches: int
    remat: str

    @property
    def label(self) -> str:
        """What tells it from the steps that it takes turns with."""
        return f"PyTorch {self.schedule}"


class PeerError(Exception):
    """A worker has ended before its time; what it said stands on standard error."""


def is_installed() -> bool:
    """Whether there is a PyTorch; it is not loaded here."""
    return importlib.util.find_spec("torch") is not None


class Peer:
    """The workers of all ranks, ready to step; ``version`` is PyTorch's."""

    def __init__(self, workers: "Sequence[subprocess.Popen[str]]") -> None:
        self._workers = workers
        self.pids = [worker.pid for worker in workers]
        self.version = self._answers()[0]["torch"]

    def step(self, experiment: Experiment) -> float:
        """One step of all ranks, from the word to the last one's answer; gives its loss."""
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(json.dumps(experiment._asdict()) + "\n")
            worker.stdin.flush()
        (loss,) = (answer["loss"] for answer in self._answers() if answer["loss"] is not None)
        return loss

    def _answers(self) -> list[dict[str, Any]]:
        lines = [worker.stdout.readline() for worker in self._workers if worker.stdout]
        if not all(lines):
            dead = ", ".join(str(rank) for rank, line in enumerate(lines) if not line)
            raise PeerError(
                f"PyTorch's rank {dead} ended before it had answered; see its message above, or do without: "
                "--no-torch"
            )
        return [json.loads(line) for line in lines]


def model_of(model: LlamaConfig, *, sequence_length: int, batch: int) -> dict[str, Any]:
    """The fields of ``torch_worker.Model``."""
    assert not model.tie_word_embeddings, "the peer's head is untied"
    sizes = {
        name: getattr(model, name)
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "rope_theta",
            "rms_norm_eps",
        )
    }
    text = {"sequence_length": sequence_length, "batch": batch}
    return sizes | {"num_key_value_heads": model.kv_heads} | text


@contextmanager
def open_peer(model: Mapping[str, Any], *, num_ranks: int) -> Iterator[Peer]:
    """Start the workers for the ``model_of`` sizes; they end with the block."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        told = {"num_ranks": num_ranks, "meeting": f"{directory}/meeting", "model": dict(model)}
        workers = [_start({"rank": rank} | told) for rank in range(num_ranks)]
        for worker in workers:
            stack.enter_context(worker)  # closes its standard input, at whose end it ends
        try:
            yield Peer(workers)
        except BaseException:
            for worker in workers:  # the others may be waiting for one that is dead
                worker.kill()
            raise


def _start(told: Mapping[str, Any]) -> "subprocess.Popen[str]":
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": _loopback()}
    command = [sys.executable, "-m", "benchmarks.torch_worker", json.dumps(told)]
    pipe = subprocess.PIPE
    # a session of its own: Ctrl-C is for the parent, which ends the workers without their tracebacks
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True, start_new_session=True
    )


def _loopback() -> str:
    """The interface of messages within the machine."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
