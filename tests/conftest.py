"""What every test runs under: eight emulated CPU devices, strict rank promotion, warnings as errors.

Everything goes through the environment, before anybody imports JAX: a test that needs no JAX does not pay
for it, and the processes that tests start inherit the same settings. Compiled programs are kept in
``.cache/jax`` (ignored by git), so that a second run of the suite compiles next to nothing.
Strict dtype promotion is left to the tests of our own arithmetic: optax multiplies int32 counts with floats.
"""

import os
from pathlib import Path

import pytest

NUM_DEVICES = 8
COMPILATION_CACHE = Path(__file__).parents[1] / ".cache" / "jax"

os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), f"--xla_force_host_platform_device_count={NUM_DEVICES}"]
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILATION_CACHE))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "error")
    # JAX does not write its cache atomically: an entry that another process is just writing, or that a killed
    # one left torn, is reported, and compiled again.
    config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache entry")
