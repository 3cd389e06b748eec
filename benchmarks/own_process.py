"""Rows that a function gives in a process of its own, which has as many emulated devices as it needs."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any


class PartError(Exception):
    """The process has ended before its time; what it said stands on standard error."""


def in_own_process(
    rows: Callable[[Any], Iterator[dict[str, Any]]], options: Any, *, num_devices: int
) -> Iterator[dict[str, Any]]:
    """What ``rows(options)`` gives, as it comes; the process ends with this one, whatever ends it."""
    context = multiprocessing.get_context("spawn")  # a fork would inherit JAX's threads, but not run them
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(rows, options, num_devices, sender), daemon=True)
    process.start()
    sender.close()
    while True:
        try:
            yield receiver.recv()
        except EOFError:
            break
    process.join()
    if process.exitcode:
        raise PartError(f"{rows.__name__} ended with code {process.exitcode}; see its message above")


def _send(rows: Callable, options: Any, num_devices: int, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent has it, too, and ends this process
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={num_devices}"
    os.environ["XLA_FLAGS"] = flags.strip()  # of a flag that is there twice the last one counts
    from jaxpipe.training.devices import emulate

    emulate(num_devices)  # as many threads as a run has; the first mesh, of a warm-up, would ask for fewer
    for row in rows(options):
        sender.send(row)
    sender.close()
