"""Model FLOPs utilization (MFU): what share of its devices' peak a run turns into training.

    MFU = FLOPs per token x positions per second / (devices x peak of one)

after Chowdhery et al. 2022 ("PaLM", appendix B), with the FLOPs per token of ``models/flops.py``. Every
position of a batch counts, whether its label does or not: all of them are computed. Neither mesh,
microbatches nor remat show in it, only how long a step takes.
"""

from collections.abc import Mapping
from typing import NamedTuple

_PEAKS: Mapping[str, float] = {
    # NVIDIA's data sheets; where they give the rate of sparse products, half of it
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA GH200": 989e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GB200": 2500e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    # Google's pages on the versions of Cloud TPU, per chip, which is one device of JAX
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    # of such a chip each half is a device
    "TPU7x": 1153e12,
}
"""FLOP/s of dense bf16 products by JAX's ``device_kind``; of a GPU by the words it starts with."""


class Utilization(NamedTuple):
    """flops_per_step: of the model, in all of a step; peak: FLOP/s of all devices, None if unknown."""

    flops_per_step: int
    peak: float | None


class Rate(NamedTuple):
    """flops_per_second: of the model, on all devices together; mfu: a share of 1, None if unknown."""

    flops_per_second: float
    mfu: float | None


def rate_of(utilization: Utilization, step_seconds: float) -> Rate:
    """What steps that take so long make of the devices."""
    flops_per_second = utilization.flops_per_step / step_seconds
    return Rate(flops_per_second, None if utilization.peak is None else flops_per_second / utilization.peak)


def peak_flops(device_kind: str, compute_dtype: str) -> float | None:
    """The peak FLOP/s of one device; None for one that is not known, and for what is not bf16."""
    words = device_kind.replace("-", " ").split()
    if compute_dtype != "bfloat16" or "MIG" in words:  # a slice of a GPU
        return None
    if words[:1] != ["NVIDIA"]:
        return _PEAKS.get(device_kind)
    starts = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    return next((_PEAKS[start] for start in starts if start in _PEAKS), None)
