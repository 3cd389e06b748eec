"""The flags are set before JAX starts, or it is said that this is too late; processes: test_faults.py."""

import os

import jax
import pytest

from jaxpipe.errors import InputError
from jaxpipe.training.determinism import make_deterministic

ON = "--xla_gpu_deterministic_ops=true"


def test_it_is_refused_where_devices_have_started_without_it(monkeypatch):
    jax.devices()
    before = jax.config.jax_num_cpu_devices
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    with pytest.raises(InputError, match=r"before JAX starts its devices, .* XLA_FLAGS=" + ON):
        make_deterministic()
    assert os.environ["XLA_FLAGS"] == "--xla_force_host_platform_device_count=8"
    assert jax.config.jax_num_cpu_devices == before


def test_devices_that_have_started_with_it_are_as_wanted(monkeypatch):
    jax.devices()
    monkeypatch.setenv("XLA_FLAGS", ON)
    assert make_deterministic() == ON


def test_what_contradicts_it_is_refused(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"{ON[:-4]}false")
    with pytest.raises(InputError, match="XLA_FLAGS has"):
        make_deterministic()
