"""What devices can do: arithmetic, memory, links within a host and between hosts; by JAX's ``device_kind``.

Rates are the makers' own, per device and, of links, in one direction. What programs reach of them is stated
where it is used (estimated_costs.py, collectives.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Hardware:
    """Bytes and FLOPs a second of one device.

    peak: dense bf16 products.
    memory: of its main memory.
    link: to devices of the same host; ``devices_per_host`` is how many these links join.
    network: a device's share of the links between hosts.
    """

    kind: str
    peak: float
    memory: float
    link: float
    network: float
    devices_per_host: int


_KNOWN = (
    # NVIDIA's data sheets: of sparse products half the rate, of NVLink half of what both directions have;
    # between hosts the adapters of its own servers (DGX), one a GPU: 200 Gbit/s, from H100 on 400
    Hardware("NVIDIA A100", 312e12, 2.039e12, 300e9, 25e9, 8),
    Hardware("NVIDIA H100 PCIe", 756e12, 2.0e12, 64e9, 25e9, 8),
    Hardware("NVIDIA H100 NVL", 835e12, 3.9e12, 64e9, 25e9, 8),
    Hardware("NVIDIA H100", 989e12, 3.35e12, 450e9, 50e9, 8),
    Hardware("NVIDIA H200 NVL", 835e12, 4.8e12, 450e9, 25e9, 4),
    Hardware("NVIDIA H200", 989e12, 4.8e12, 450e9, 50e9, 8),
    Hardware("NVIDIA GH200", 989e12, 4.0e12, 450e9, 50e9, 4),
    Hardware("NVIDIA B200", 2250e12, 8.0e12, 900e9, 50e9, 8),
    Hardware("NVIDIA GB200", 2500e12, 8.0e12, 900e9, 50e9, 72),
    Hardware("NVIDIA L4", 121e12, 0.3e12, 32e9, 12.5e9, 8),
    Hardware("NVIDIA L40S", 362e12, 0.864e12, 32e9, 25e9, 8),
    # Google's pages on the versions of Cloud TPU, per chip, which is one device of JAX. Links go along two
    # or three axes, of which a group of devices uses one, both ways round; they join a whole pod.
    Hardware("TPU v4", 275e12, 1.2e12, 100e9, 6.25e9, 4096),
    Hardware("TPU v5 lite", 197e12, 0.819e12, 100e9, 6.25e9, 256),
    Hardware("TPU v5e", 197e12, 0.819e12, 100e9, 6.25e9, 256),
    Hardware("TPU v5", 459e12, 2.765e12, 200e9, 6.25e9, 8960),
    Hardware("TPU v5p", 459e12, 2.765e12, 200e9, 6.25e9, 8960),
    Hardware("TPU v6 lite", 918e12, 1.64e12, 224e9, 12.5e9, 256),
    Hardware("TPU v6e", 918e12, 1.64e12, 224e9, 12.5e9, 256),
    # of such a chip each half is a device
    Hardware("TPU7x", 1153e12, 3.69e12, 200e9, 6.25e9, 9216),
)

KNOWN: Mapping[str, Hardware] = {hardware.kind: hardware for hardware in _KNOWN}
"""Of a GPU by the words that its kind starts with."""


def find_hardware(device_kind: str) -> Hardware | None:
    """What is known of such a device; None for one that is not known, and for a slice of a GPU."""
    words = device_kind.replace("-", " ").split()
    if "MIG" in words:
        return None
    if words[:1] != ["NVIDIA"]:
        return KNOWN.get(device_kind)
    starts = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    return next((KNOWN[start] for start in starts if start in KNOWN), None)


def peak_flops(device_kind: str, compute_dtype: str) -> float | None:
    """The peak FLOP/s of one device; None for one that is not known, and for what is not bf16."""
    hardware = find_hardware(device_kind)
    return None if hardware is None or compute_dtype != "bfloat16" else hardware.peak
