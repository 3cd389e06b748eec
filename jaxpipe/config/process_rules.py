"""The rules of several processes: who they are, where they meet, and that they share the devices evenly."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

IDENTITY = tuple(f"distributed.{name}" for name in ("coordinator", "num_processes", "process_id", "detect"))
"""The keys that ``check_identity`` reads."""

_HOST_AND_PORT = re.compile(r"(?P<host>[^\s:]+|\[[^\s\]]+\]):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT = 65_535


def has_several_processes(values: Mapping[str, Any]) -> bool:
    """Whether these values ask to join other processes."""
    return values.get("distributed.num_processes") is not None or bool(values.get("distributed.detect"))


def check_coordinator(coordinator: str | None) -> Iterator[str]:
    """It is a host and a port."""
    if coordinator is None:
        return
    found = _HOST_AND_PORT.fullmatch(coordinator)
    if not found or not 1 <= int(found["port"]) <= _HIGHEST_PORT:
        yield (
            f"distributed.coordinator={coordinator} must be host:port with a port from 1 to {_HIGHEST_PORT}; "
            "use something like node0:12355"
        )


def check_identity(
    coordinator: str | None, num_processes: int | None, process_id: int | None, detect: bool
) -> Iterator[str]:
    """Where, how many and which: all or nothing, unless JAX finds out what is missing."""
    values = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in values.items() if value is None]
    given = [f"distributed.{name}={value}" for name, value in values.items() if value is not None]
    if given and missing and not detect:
        yield (
            f"{' and '.join(given)} must come with distributed.{' and distributed.'.join(missing)}; "
            "give all three, or let distributed.detect find what is missing"
        )
    if num_processes is not None and process_id is not None and process_id >= num_processes:
        yield (
            f"distributed.process_id={process_id} must be below distributed.num_processes={num_processes}, "
            f"as it counts from 0; use 0 to {num_processes - 1}"
        )


def check_devices(num_processes: int | None, dp: int, pp: int, tp: int) -> Iterator[str]:
    """Each process has the same number of devices, one at least."""
    if num_processes is not None and dp * pp * tp % num_processes:
        yield (
            f"mesh.dp={dp} x mesh.pp={pp} x mesh.tp={tp} = {dp * pp * tp} devices must be a multiple of "
            f"distributed.num_processes={num_processes}, as each has an equal share; change one of them"
        )
