"""Processes that make shards, each one unit at a time: as many as there are cores, and nothing left of them.

They are spawned, so they share nothing but three counters, and each loads the tokenizer once. Ctrl-C is for
the parent alone, which ends them, as it does when SIGTERM ends it; when the parent is gone, however it ended,
they end by themselves.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from jaxpipe.data.prepare.plan import Plan
from jaxpipe.data.prepare.shard import make_shard
from jaxpipe.data.prepare.split import Forced
from jaxpipe.data.tokenizer import load_tokenizer
from jaxpipe.errors import InputError, StorageError

BYTES, TOKENS, TAKEN = range(3)
"""The counters: bytes of the files that are done, tokens written, and units that a worker has taken."""

_TOLD_EVERY = 0.1
"""Seconds."""


@dataclass(frozen=True)
class Task:
    """What every worker is given: the plan, the folder, and how to load the tokenizer."""

    plan: Plan
    folder: Path
    tokenizer: str | None
    end_of_document: str | None


OnCount = Callable[[int, int], None]
"""Told bytes and tokens since the workers were started, a few times a second."""


def make_shards(
    task: Task, units: Sequence[int], forced: Forced | None, *, workers: int, on_count: OnCount
) -> None:
    """Make the shards of these units; the first fault ends all.

    Raises:
        InputError, StorageError: see ``make_shard``; also where a worker was killed.
    """
    context = multiprocessing.get_context("spawn")
    counters = context.Array("d", 3)
    running: dict[Any, Connection] = {}
    try:
        for _ in range(min(workers, len(units))):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(task, units, forced, counters, sender), daemon=True)
            running[process] = receiver  # before it is started, so that an interrupt finds it
            with _without_interrupts():
                process.start()
            sender.close()
        while running:
            # what a worker says may be more than its pipe holds: it ends when that was read
            ended = wait([*(process.sentinel for process in running), *running.values()], timeout=0.2)
            on_count(int(counters[BYTES]), int(counters[TOKENS]))
            for process, receiver in list(running.items()):
                if receiver in ended or process.sentinel in ended:
                    _raise_from(process, running.pop(process))
    finally:
        started = [process for process in running if process.pid is not None]
        for process in started:
            process.terminate()
        for process in started:
            process.join()


def _raise_from(process: Any, receiver: Connection) -> None:
    """Raise what a worker met that has ended, or is about to; nothing if all went well."""
    try:
        found = receiver.recv()
    except EOFError as error:
        process.join()
        if process.exitcode == 0:
            return
        raise StorageError(
            f"a worker has ended with {process.exitcode}, as when memory is short; run the same command "
            "again, which goes on from there, with fewer --workers"
        ) from error
    process.join()
    raise found


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C and SIGTERM come afterwards, and Ctrl-C is nothing to a process that is started here.

    A process inherits which signals are blocked before it runs any code of its own. Blocking them in this
    thread alone keeps no other thread of NumPy's from getting them, so here they are only noted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, frame: noted.append(number)) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    for received in noted:
        signal.raise_signal(received)


def _work(task: Task, units: Sequence[int], forced: Forced | None, counters: Any, sender: Connection) -> None:
    """A worker: one unit after the other, until all are taken."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each core has a worker
    try:
        tokenizer = load_tokenizer(task.tokenizer, end_of_document=task.end_of_document)
        while (taken := _take(counters)) < len(units):
            counts = _Counts(counters)
            make_shard(task.plan, units[taken], task.folder, tokenizer, forced=forced, report=counts.add)
            counts.tell()
    except (InputError, StorageError) as error:
        sender.send(error)
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _take(counters: Any) -> int:
    with counters.get_lock():
        counters[TAKEN] += 1
        return int(counters[TAKEN]) - 1


class _Counts:
    """What a worker has done and not told yet, since telling wants a lock."""

    def __init__(self, counters: Any) -> None:
        self._counters = counters
        self._bytes, self._tokens, self._last = 0.0, 0, time.monotonic()

    def add(self, size: float, tokens: int) -> None:
        self._bytes += size
        self._tokens += tokens
        if time.monotonic() - self._last > _TOLD_EVERY:
            self.tell()

    def tell(self) -> None:
        with self._counters.get_lock():
            self._counters[BYTES] += self._bytes
            self._counters[TOKENS] += self._tokens
        self._bytes, self._tokens, self._last = 0.0, 0, time.monotonic()
