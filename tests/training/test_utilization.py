"""Which devices' peak is known, and that the MFU is what a person would work out."""

import pytest

from jaxpipe.planning.hardware import peak_flops
from jaxpipe.training.utilization import Utilization, rate_of


@pytest.mark.parametrize(
    ("device_kind", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA B200", 2250e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v6e", 918e12),
    ],
)
def test_the_peak_of_a_device_is_found_by_the_name_jax_gives_it(device_kind: str, expected: float) -> None:
    assert peak_flops(device_kind, "bfloat16") == expected
    assert peak_flops(device_kind, "float32") is None


@pytest.mark.parametrize(
    "device_kind",
    ["cpu", "", "NVIDIA", "NVIDIA H1000", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "TPU v4 lite", "Tesla V100"],
)
def test_what_only_looks_like_a_known_device_has_no_peak(device_kind: str) -> None:
    assert peak_flops(device_kind, "bfloat16") is None


def test_mfu_is_the_share_of_what_all_devices_could() -> None:
    """8 H100 at 400 TFLOP/s each."""
    utilization = Utilization(flops_per_step=8 * 400 * 10**12 * 5, peak=8 * 989e12)
    rate = rate_of(utilization, step_seconds=5.0)
    assert rate.flops_per_second == 8 * 400e12
    assert rate.mfu == pytest.approx(400 / 989)
    assert rate_of(utilization._replace(peak=None), 5.0).mfu is None
