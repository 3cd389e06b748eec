"""A mesh that does not fit its devices is refused with those that would."""

import errno
import math
import os
import re
import subprocess
import sys
from typing import NamedTuple

import jax
import pytest

from jaxpipe.errors import InputError
from jaxpipe.training.devices import compiler_options, fitting_meshes, make_mesh


class Device(NamedTuple):
    """As much of an accelerator as is asked before a mesh is refused."""

    platform: str = "gpu"


def sizes(mesh: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", mesh)]


@pytest.mark.parametrize("num_devices", [1, 6, 8, 12, 64])
def test_all_that_are_named_fit(num_devices: int) -> None:
    named = fitting_meshes(num_devices, (2, 3, 4))
    assert named
    assert len(named) <= 6
    for mesh in named:
        assert math.prod(sizes(mesh)) == num_devices


def test_those_come_first_that_change_one_value() -> None:
    first = {"dp 4 x pp 2 x tp 1", "dp 2 x pp 4 x tp 1", "dp 2 x pp 2 x tp 2"}
    assert set(fitting_meshes(8, (2, 2, 1))[:3]) == first


@pytest.mark.parametrize("size", [1, 2, 8, 16])
def test_accelerators_are_all_used_or_the_run_is_refused(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of four lies idle without a word."""
    monkeypatch.setattr(jax, "devices", lambda: [Device()] * 4)
    with pytest.raises(
        InputError, match=rf"needs exactly {size} devices, but there are 4 \(gpu\), which fit dp"
    ):
        make_mesh(dp=1, pp=size, tp=1)


def test_a_mesh_of_more_accelerators_than_there_are_is_told_how_to_run_dry(monkeypatch) -> None:
    monkeypatch.setattr(jax, "devices", lambda: [Device()] * 4)
    with pytest.raises(InputError, match=r"set JAX_PLATFORMS=cpu to emulate 16, which does for --dry-run$"):
        make_mesh(dp=2, pp=8, tp=1)


def test_emulated_devices_may_lie_idle() -> None:
    assert make_mesh(dp=1, pp=2, tp=1).size == 2


POLICIES = """
import os
os.sched_setscheduler(0, {before}, os.sched_param(0))
from jaxpipe.training.devices import make_mesh
make_mesh(dp=1, pp=2, tp=1)
print({{os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}} == {{{after}}})
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
@pytest.mark.parametrize(
    ("before", "after"), [("os.SCHED_OTHER", "os.SCHED_BATCH"), ("os.SCHED_IDLE", "os.SCHED_IDLE")]
)
def test_emulated_devices_are_a_batch_job_unless_told_otherwise(before: str, after: str) -> None:
    """All threads, XLA's too; in a process of its own, since a policy stays."""
    command = [sys.executable, "-c", POLICIES.format(before=before, after=after)]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment | {"JAX_PLATFORMS": "cpu"}
    )
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL, errno.ENOSYS])
def test_a_sandbox_without_policies_runs_all_the_same(number: int, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "SCHED_BATCH", 3, raising=False)
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: 0, raising=False)
    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    assert make_mesh(dp=1, pp=2, tp=1).size == 2


def test_what_the_rest_of_the_run_refuses_is_not_named() -> None:
    named = fitting_meshes(6, (2, 4, 1), fits=lambda dp, pp, tp: 32 % dp == 0 and pp <= 4 and 4 % tp == 0)
    assert named == ["dp 1 x pp 3 x tp 2", "dp 2 x pp 3 x tp 1"] or set(named) == {
        "dp 2 x pp 3 x tp 1",
        "dp 1 x pp 3 x tp 2",
    }


def test_cpu_is_told_an_order_of_operations_unless_somebody_else_tells_it(monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    assert set(compiler_options("cpu")) == {"xla_cpu_scheduler_type"}
    assert compiler_options("gpu") == {}
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_DEFAULT")
    assert compiler_options("cpu") == {}
