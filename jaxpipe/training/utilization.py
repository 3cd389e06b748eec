"""Model FLOPs utilization (MFU): what share of its devices' peak a run turns into training.

    MFU = FLOPs per token x positions per second / (devices x peak of one)

after Chowdhery et al. 2022 ("PaLM", appendix B), with the FLOPs per token of ``models/flops.py``. Every
position of a batch counts, whether its label does or not: all of them are computed. Neither mesh,
microbatches nor remat show in it, only how long a step takes.
"""

from typing import NamedTuple


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
