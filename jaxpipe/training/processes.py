"""A run of several processes: how they find each other, agree, and end together.

All run this same program on the same configuration and text, as JAX wants it, each with its own devices.
Process 0 alone writes and prints; what only it can know (which checkpoint there is) it tells the others.

    joined         jax.distributed, then the watch over each other (stopping/watch.py), until the run is over
    from_first     a value of process 0, in all processes
    first_said     a sentence of any process, in all of them
    wait_for_all   until all have come as far
    same_in_all    refuse to start with different configurations or texts, and say what differs

How a process of several ends::

    code            0, 143      the run is over, or was asked to stop: all end alike
                    2           this one or another refuses to go on: InputError
                    1           something went wrong here or elsewhere, a step took longer than
                                run.step_timeout, or another process has vanished
                    130, 143    a signal came before the first step, or the run did not end in time after it
                    134         JAX has ended it (SIGABRT): process 0, and with it JAX's own coordination,
                                is gone, and JAX was faster than our watch; or another one vanished while
                                all were starting

All of that happens within ``distributed.timeout`` seconds. Who ends because of another one says where it
stood itself: of a step that never ends, all sides are told.
"""

import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxpipe.config import DistributedConfig
from jaxpipe.errors import InputError, first_line
from jaxpipe.training.devices import emulate, find_devices
from jaxpipe.training.stopping.endings import ending_of
from jaxpipe.training.stopping.leaving import say, say_and_exit, show_cursor, tell
from jaxpipe.training.stopping.standing import Standing, report
from jaxpipe.training.stopping.watch import (
    Address,
    Watch,
    fail,
    listen,
    open_port,
    say_done,
    watch_all,
    watch_first,
)
from jaxpipe.training.storage import storing

_SILENCE = 0.5
"""Share of the timeout after which the watch loses patience: before JAX, which ends a process less nicely."""

_JAX_PATIENCE = 30
"""Seconds that JAX may take longer to start than we wait: the sentence is ours."""

_NEWS_SECONDS = 1.0
_BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"


@contextmanager
def joined(
    settings: DistributedConfig, *, num_devices: int, standing: Standing | None = None
) -> Iterator[None]:
    """Be one of several processes, if the settings ask for that, for as long as this context lasts.

    Without accelerators each process gets its share of ``num_devices`` emulated ones. An error that leaves
    this context in one of several processes ends them all, here and now: it is told, and not passed on.
    From then on ``standing`` too ends all of them.
    """
    if settings.num_processes is None and not settings.detect:
        yield
        return
    watch = None
    try:
        watch = _start(settings, num_devices)
        if watch is not None and standing is not None:
            _stand_together(watch, standing)
        yield
        with storing("the standard output"):
            sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - nobody above could end the others
        _fail(watch, error)
    if watch is not None:
        say_done(watch)
    jax.distributed.shutdown()


def is_first() -> bool:
    """Whether this is process 0, which alone writes and prints. One process needs no devices yet to know."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def from_first(value: int) -> int:
    """Process 0's ``value``, in all processes; all must ask."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def wait_for_all() -> None:
    """Return when all processes have come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("all are here")


def first_said(text: str | None) -> str | None:
    """The text of the first process that has one, in all processes; None if none has. All must ask."""
    if jax.process_count() == 1:
        return text
    has_one = multihost_utils.process_allgather(np.int32(text is not None))
    if not has_one.any():
        return None
    return _text_of(int(has_one.argmax()), text or "")


def same_in_all(values: Mapping[str, Any]) -> None:
    """Raise InputError in each process whose ``values``, which JSON can hold, are not those of process 0.

    All must ask. The sentence names each value that differs, as it is here and in process 0.
    """
    own = {name: json.dumps(value) for name, value in values.items()}
    first = json.loads(_text_of_first(json.dumps(own)))
    differing = [name for name in own | first if own.get(name) != first.get(name)]
    if differing:
        found = ", ".join(
            f"{name} is {own.get(name, 'missing')} here and {first.get(name, 'missing')} there"
            for name in differing
        )
        raise InputError(
            f"all processes must have the same configuration and text, but process {jax.process_index()} "
            f"differs from process 0: {found}; start all with the same files and flags"
        )


def _text_of_first(text: str) -> str:
    return _text_of(0, text)


def _text_of(process: int, text: str) -> str:
    """The ``text`` of that process, in all of them: its length first, as all must send equally much."""
    is_source = jax.process_index() == process
    own = np.frombuffer(text.encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(own.size), is_source=is_source))
    padded = np.zeros(size, np.uint8)
    if is_source:
        padded[:] = own
    return multihost_utils.broadcast_one_to_all(padded, is_source=is_source).tobytes().decode()


def _start(settings: DistributedConfig, num_devices: int) -> Watch | None:
    """Join the others, start the devices and the watch; None if there are no others after all.

    Raises:
        InputError: there is no cluster to detect, or the coordinator's address cannot be used.
    """
    if settings.coordinator is not None and settings.process_id == 0:
        _check_port(settings.coordinator)
    deadline = threading.Timer(settings.timeout, say_and_exit, (_late(settings), 1))
    deadline.daemon = True
    deadline.start()
    if settings.num_processes is not None:
        emulate(num_devices // settings.num_processes)
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM away from us
    _initialize(settings)
    devices = find_devices()
    _check_shares(devices)
    _keep_stdout_clean(devices)
    watch = _start_watch(settings) if jax.process_count() > 1 else None
    deadline.cancel()
    return watch


def _check_port(coordinator: str) -> None:
    """Process 0 must be able to listen at the port: where JAX finds it taken it may crash without a word."""
    if os.environ.get(_BIND_ADDRESS):  # JAX then listens elsewhere
        return
    try:
        open_port(int(coordinator.rpartition(":")[2])).close()
    except OSError as error:
        cause = os.strerror(error.errno) if error.errno else str(error)
        raise InputError(
            f"process 0 must be able to listen at distributed.coordinator={coordinator}, but: {cause}; "
            "name a port that is free there, in all processes"
        ) from error


def _initialize(settings: DistributedConfig) -> None:
    try:
        jax.distributed.initialize(
            settings.coordinator,
            settings.num_processes,
            settings.process_id,
            cluster_detection_method=None if settings.detect else "deactivate",
            initialization_timeout=settings.timeout + _JAX_PATIENCE,
            heartbeat_timeout_seconds=settings.timeout,
            shutdown_timeout_seconds=settings.timeout,
        )
    except (ValueError, RuntimeError) as error:
        cause = first_line(error)
        remedy = (
            "start it by srun or mpirun, or give distributed.coordinator, num_processes and process_id"
            if settings.detect
            else "give distributed.coordinator a name of process 0's host and a port that is free there"
        )
        raise InputError(f"JAX must be able to join the processes, but: {cause}; {remedy}") from error


def _check_shares(devices: Sequence[jax.Device]) -> None:
    own, num_processes = jax.local_device_count(), jax.process_count()
    if len(devices) != own * num_processes:
        raise InputError(
            f"each process must have as many devices, but process {jax.process_index()} has {own}, and all "
            f"{num_processes} have {len(devices)}; let each see the same number"
        )


def _late(settings: DistributedConfig) -> str:
    count = "all" if settings.num_processes is None else f"all {settings.num_processes}"
    this = "this one" if settings.process_id is None else f"this one, process {settings.process_id},"
    where = "" if settings.coordinator is None else f" at {settings.coordinator}"
    return (
        f"{count} processes must have joined within distributed.timeout={settings.timeout} seconds, but "
        f"{this} has waited for the others{where} in vain: two may have the same process_id, one another "
        "address, or one has refused to start; see what the others say, or raise the timeout"
    )


def _start_watch(settings: DistributedConfig) -> Watch:
    """Process 0 opens a door and tells the others where, through JAX; they come in."""
    silence = _SILENCE * settings.timeout
    if is_first():
        listener = listen(_own_hosts(settings.coordinator))
        _broadcast_address(listener.address)
        return watch_all(listener, jax.process_count(), silence=silence)
    address = _broadcast_address(None)
    try:
        return watch_first(address, jax.process_index(), silence=silence)
    except OSError as error:
        raise InputError(
            f"each process must reach process 0 at port {address.port}, but: {error}; let the hosts connect "
            "to each other on any port"
        ) from error


def _broadcast_address(address: Address | None) -> Address:
    hosts, port, token = json.loads(_text_of_first(json.dumps(address)))
    return Address(tuple(hosts), port, token)


def _own_hosts(coordinator: str | None) -> list[str]:
    """Names of process 0's host, the likeliest first."""
    hosts = [coordinator.rpartition(":")[0].strip("[]")] if coordinator else []
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.255.255.255", 1))  # sends nothing, but shows the address of the way out
        hosts.append(probe.getsockname()[0])
    return list(dict.fromkeys([*hosts, socket.gethostname()]))


def _keep_stdout_clean(devices: Sequence[jax.Device]) -> None:
    """On CPU, Gloo writes a line to C's stdout for each device of each group: let that go nowhere.

    What Python prints still arrives, from process 0; from the others nothing does. On accelerators all is
    left as it is: what NCCL_DEBUG asks for arrives at C's stdout.
    """
    if devices[0].platform != "cpu":
        return
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if is_first():
        sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, buffering=1)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _fail(watch: Watch | None, error: BaseException) -> NoReturn:
    """Tell the error and end all processes.

    A collective fails when another process dies: the watch then says so, and this error is of no interest.
    """
    ending = ending_of(error)
    if ending is None:
        time.sleep(_NEWS_SECONDS)
    with suppress(OSError):  # nobody may be left to read it
        if ending is None:
            traceback.print_exception(error)
            sys.stderr.flush()
    if ending is not None and ending.sentence:
        tell(ending.sentence)
    code = 1 if ending is None else ending.code
    if watch is None:
        os._exit(code)
    fail(watch, code)


def _stand_together(watch: Watch, standing: Standing) -> None:
    """Whatever ends this process ends the others, and says which one it was."""

    def end(sentence: str, code: int) -> NoReturn:
        show_cursor()
        say(f"train.py: {sentence}")
        fail(watch, code)

    watch.where = lambda: report(standing)
    standing.end = end
    standing.process = f"process {watch.process_id} of {jax.process_count()}"
