"""Real processes that are killed while they save, or have no room to."""

import random
import re
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxpipe.checkpoint.checkpoints import open_checkpoints
from jaxpipe.checkpoint.step_folders import complete_steps

PREAMBLE = """
import resource, sys
import jax, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxpipe.checkpoint.checkpoints import open_checkpoints

mesh = Mesh(np.array(jax.devices()), ("pp",), axis_types=(AxisType.Auto,))
sharding = NamedSharding(mesh, PartitionSpec("pp"))

def arrays(step):
    noise = np.random.default_rng(step).normal(size=(8, 4096)).astype(np.float32)
    return {name: jax.device_put(noise, sharding) for name in ("a", "b", "c")}
"""

SAVE_FOREVER = """
with open_checkpoints(sys.argv[1], keep=2) as checkpoints:
    step = checkpoints.latest() or 0
    while True:
        step += 1
        checkpoints.save(step, arrays(step), {"step": step})
        print(step, flush=True)
"""

FILL_THE_DISK = """
import os
from jaxpipe.errors import CheckpointError

try:
    with open_checkpoints(sys.argv[1], keep=1) as checkpoints:
        checkpoints.save(1, arrays(1), {"step": 1})
        checkpoints.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        checkpoints.save(2, arrays(2), {"step": 2})
except CheckpointError as error:
    print(error, file=sys.stderr, flush=True)
    os._exit(1)
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PREAMBLE + program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def assert_whole(directory: Path, step: int) -> None:
    """Every value of the checkpoint is the one that its step was saved with."""
    noise = np.random.default_rng(step).normal(size=(8, 4096)).astype(np.float32)
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {name: jax.ShapeDtypeStruct((8, 4096), np.float32, sharding=place) for name in ("a", "b", "c")}
    with open_checkpoints(directory, keep=2) as checkpoints:
        assert checkpoints.read_manifest(step).info == {"step": step}
        assert checkpoints.find_damage(step) is None
        for leaf in checkpoints.restore(step, like).values():
            np.testing.assert_array_equal(leaf, noise)


def test_a_kill_during_a_save_leaves_the_checkpoints_before_it_whole(tmp_path: Path):
    chance = random.Random(0)
    latest = 0
    for _ in range(3):
        with start(SAVE_FOREVER, tmp_path) as process:
            assert process.stdout is not None
            # The line of step n + 1 says that step n is complete.
            begun = [int(process.stdout.readline()) for _ in range(2)]
            time.sleep(chance.uniform(0.0, 0.3))
            process.kill()
        assert begun[0] == latest + 1
        steps = complete_steps(tmp_path)
        assert steps[-1] >= begun[0]
        for step in steps:
            assert_whole(tmp_path, step)
        latest = steps[-1]


@pytest.mark.parametrize("limit", [0, 20_000])
def test_a_full_disk_ends_the_run_and_leaves_the_checkpoint_before(tmp_path: Path, limit):
    with start(FILL_THE_DISK, tmp_path, limit) as process:
        _, errors = process.communicate()
    assert process.returncode == 1
    assert f"checkpoint {tmp_path / '2'} could not be written" in errors
    assert "File too large" in errors
    assert "free space, then resume from step 1" in errors
    # XLA's own lines, on programs that another release has cached, say nothing of the disk
    assert len([line for line in errors.splitlines() if not re.match(r"[EWI]\d{4} ", line)]) == 1
    assert complete_steps(tmp_path) == (1,)
    assert_whole(tmp_path, 1)
    with open_checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(2, {"a": jax.numpy.ones(3)}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["2"]
