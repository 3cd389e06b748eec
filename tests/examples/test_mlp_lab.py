"""The teaching lab, run as its reader would."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).parents[2] / "examples" / "mlp_lab.py"

ORDERS = {
    "gpipe": ["F0 F1 F2 F3 B0 B1 B2 B3"] * 3,
    "1f1b": ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"],
}


@pytest.fixture(scope="module")
def output() -> str:
    run = subprocess.run([sys.executable, LAB], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize("name", ORDERS)
def test_the_devices_ran_the_order_that_is_written_down(output: str, name: str) -> None:
    measured = output.split(f"{name}: measured")[1]
    lines = re.findall(r"rank \d \|(.*)", measured)[:3]
    assert [" ".join(re.findall(r"[FB]\d", line)) for line in lines] == ORDERS[name]


@pytest.mark.parametrize(("name", "in_ticks"), [("gpipe", 1 / 3), ("1f1b", 3 / 7)])
def test_the_measured_bubble_is_the_predicted_one(output: str, name: str, in_ticks: float) -> None:
    """The layers sleep, so a busy machine can only make the bubble larger, not smaller."""
    pattern = r"bubble: predicted ([\d.]+)% .* ([\d.]+)% in ticks; measured ([\d.]+)%"
    numbers = re.search(pattern, output.split(f"{name}: measured")[1])
    assert numbers
    predicted, ticked, measured = (float(number) / 100 for number in numbers.groups())
    assert predicted == pytest.approx(1 / 3, abs=0.001)
    assert ticked == pytest.approx(in_ticks, abs=0.001)
    assert in_ticks - 0.02 < measured < 0.8


def test_every_gradient_equals_that_of_one_device(output: str) -> None:
    losses = set(re.findall(r"loss (\d+\.\d+)", output))
    assert len(losses) == 1
    differences = re.findall(r"from one device: (\S+)", output)
    assert len(differences) == 2
    assert max(map(float, differences)) < 1e-5


def test_a_wrong_duration_is_one_sentence() -> None:
    run = subprocess.run(
        [sys.executable, LAB, "--forward", "-1"], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 2
    assert "must be between 0.001 and 10 seconds" in run.stderr
