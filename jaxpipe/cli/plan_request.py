"""What ``jaxpipe plan`` is asked: the configuration, the devices and their memory, what things cost."""

import argparse
import re
from dataclasses import dataclass, replace
from pathlib import Path

from jaxpipe.cli.sizes import read_number
from jaxpipe.config import Config, MeshConfig, PipelineConfig, faults, from_yaml
from jaxpipe.errors import InputError
from jaxpipe.planning.costs_file import MeasuredCosts, read_costs
from jaxpipe.planning.estimated_costs import estimated_parts
from jaxpipe.planning.hardware import KNOWN, Hardware, find_hardware
from jaxpipe.planning.layouts import Layout, Task
from jaxpipe.planning.measured_costs import find_cost_faults, hardware_of, measured_parts
from jaxpipe.planning.part_seconds import PartSeconds

DEFAULT_DEVICE = "NVIDIA H100"
_MOST_DEVICES = 4096
_MOST_SHOWN = 100
_LARGEST = 2**24
_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kKMGT]i?B)")


@dataclass(frozen=True)
class Request:
    """All of it, without faults.

    memory: bytes of a device that a step may hold. costs: as measured, or None where they are estimated.
    given: the keys of the configuration that the request gives otherwise.
    """

    file: str
    config: Config
    task: Task
    memory: float
    hardware: Hardware
    costs: MeasuredCosts | None
    num_shown: int
    given: frozenset[str]

    @property
    def platform(self) -> str:
        """As JAX names it."""
        if self.costs is not None:
            return self.costs.platform
        return "tpu" if self.hardware.kind.startswith("TPU") else "gpu"

    @property
    def peak(self) -> float | None:
        """FLOP/s of a device, where they are known."""
        is_known = self.hardware.peak and self.config.train.compute_dtype == "bfloat16"
        return self.config.run.peak_flops or (self.hardware.peak if is_known else None)

    def parts_of(self, layout: Layout) -> PartSeconds:
        """What the parts of a step take."""
        if self.costs is not None:
            return measured_parts(self.task, layout, self.costs)
        return estimated_parts(self.task, layout, self.hardware)


def read_request(arguments: argparse.Namespace, found: list[str]) -> Request | None:
    """The request, or None and all that is wrong with it."""
    num_devices = _count(arguments.devices, "--devices", _MOST_DEVICES, found)
    num_shown = _count(arguments.top, "--top", _MOST_SHOWN, found)
    memory = _memory(arguments.memory, found)
    config = _config(arguments, found)
    costs = _costs(arguments.costs, found)
    hardware = _hardware(arguments, costs, found)
    if found or config is None or hardware is None:
        return None
    task = Task(
        model=config.model,
        sequence_length=config.data.sequence_length,
        global_batch=config.train.global_batch_size,
        compute_dtype=config.train.compute_dtype,
        num_devices=num_devices,
        devices_per_host=hardware.devices_per_host,
        evaluation_batch=config.train.eval_batch_size,
        writes_scores=costs is not None and costs.platform == "cpu",
    )
    if costs is not None:
        found += [f"--costs {arguments.costs}: {fault}" for fault in find_cost_faults(costs, task)]
    elif config.train.compute_dtype != "bfloat16":
        found.append(
            f"train.compute_dtype={config.train.compute_dtype} has no published rates; give --costs, or "
            "compute in bfloat16"
        )
    given = {
        "data.sequence_length": arguments.sequence_length,
        "train.global_batch_size": arguments.global_batch,
    }
    names = frozenset(key for key, text in given.items() if text is not None)
    return Request(arguments.model, config, task, memory, hardware, costs, num_shown, names)


def _count(text: str, option: str, most: int, found: list[str]) -> int:
    number = read_number(text, int, option=option, faults=found, fallback=1)
    if not 1 <= number <= most:
        found.append(f"{option} {number} must be at least 1 and at most {most}")
        return 1
    return number


def _memory(text: str, found: list[str]) -> float:
    match = _MEMORY.fullmatch(text)
    if match is None or match[2] not in _UNITS or float(match[1]) == 0:
        found.append(f"--memory {text!r} must be a number and one of {', '.join(_UNITS)}, such as 80GB")
        return 1.0
    return float(match[1]) * _UNITS[match[2]]


def _config(arguments: argparse.Namespace, found: list[str]) -> Config | None:
    """The file's, with the sizes that were given; what is wrong with its own layout does not matter here."""
    lengths = {
        option: read_number(text, int, option=option, faults=found, fallback=1)
        for option, text in (
            ("--sequence-length", arguments.sequence_length),
            ("--global-batch", arguments.global_batch),
        )
        if text is not None
    }
    for option, value in lengths.items():
        if not 1 <= value <= _LARGEST:
            found.append(f"{option} {value} must be at least 1 and at most {_LARGEST}")
            return None
    try:
        config = from_yaml(Path(arguments.model).read_text(encoding="utf-8"), name=arguments.model)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        found.append(f"--model {arguments.model!r} cannot be read: {reason}; name a YAML file")
        return None
    except InputError as error:
        found.append(f"--model {error}")
        return None
    data = replace(config.data, sequence_length=lengths.get("--sequence-length", config.data.sequence_length))
    train = replace(
        config.train, global_batch_size=lengths.get("--global-batch", config.train.global_batch_size)
    )
    config = replace(config, data=data, train=train)
    bare = replace(config, mesh=MeshConfig(pp=1), pipeline=PipelineConfig(num_microbatches=1))
    wrong = faults(bare)
    found += wrong
    return None if wrong else config


def _costs(path: str | None, found: list[str]) -> MeasuredCosts | None:
    if path is None:
        return None
    try:
        return read_costs(Path(path))
    except InputError as error:
        found.append(f"--costs {error}")
        return None


def _hardware(
    arguments: argparse.Namespace, costs: MeasuredCosts | None, found: list[str]
) -> Hardware | None:
    if arguments.costs is not None:
        if arguments.device is not None:
            found.append(
                "--device is settled by --costs, which names what it measured; leave one of them out"
            )
        return hardware_of(costs) if costs else None
    kind = arguments.device or DEFAULT_DEVICE
    hardware = find_hardware(kind)
    if hardware is None:
        found.append(
            f"--device {kind!r} is not known: there are {', '.join(KNOWN)}; for another give --costs"
        )
    return hardware
