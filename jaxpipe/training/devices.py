"""The devices of a run: emulated ones on CPU, as many as the mesh needs, without being asked."""

import math
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh

from jaxpipe.errors import InputError

_EMULATION_FLAG = "--xla_force_host_platform_device_count"

_POOL_SIZE = "NPROC"
"""How many threads XLA's pool for CPU has, if that is more than devices. A device that waits for another
holds one of them: with as many as devices none is left to share a product's work (docs/performance.md)."""

_SCHEDULER = "xla_cpu_scheduler_type"


def emulate(num_devices: int) -> None:
    """Give this process so many CPU devices, unless ``XLA_FLAGS`` already says how many.

    To be called before anything starts JAX's backends; a GPU or TPU sees nothing of it.
    """
    if _EMULATION_FLAG not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", num_devices)
    os.environ.setdefault(_POOL_SIZE, str(num_devices + _num_cores()))


def _num_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_devices() -> list[jax.Device]:
    """The devices of all processes; InputError if JAX finds none.

    Where they are CPUs, this process works as a batch job from now on.
    """
    try:
        devices = jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts where the platform asked for has no plugin
        platforms = f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')} gives none"
        cause = (str(error).splitlines() or [platforms])[0]
        raise InputError(f"JAX must find devices, but: {cause}; correct or unset JAX_PLATFORMS") from error
    if devices[0].platform == "cpu":
        _work_as_batch()
    return devices


def _work_as_batch() -> None:
    """Tell Linux that no thread here need take a core from another as soon as it wakes up.

    Emulated devices wake each other all the time, and each is as far from done as the one that would have
    to wait. A policy that is not the usual one is somebody's choice, and stays.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return
    # a sandbox may know no policies: steps are slower then, and nothing else
    with suppress(OSError):
        for thread in map(int, os.listdir("/proc/self/task")):
            with suppress(ProcessLookupError):  # it has ended
                if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                    os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def compiler_options(platform: str) -> dict[str, Any]:
    """What XLA is told for a step on such devices, unless ``XLA_FLAGS`` says something else.

    On CPU it puts operations in an order in which less is alive at once: steps hold less, and more of what
    they read is still in a cache (docs/performance.md).
    """
    is_told = _SCHEDULER in os.environ.get("XLA_FLAGS", "")
    if is_told or platform != "cpu":
        return {}
    return {_SCHEDULER: "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


def make_mesh(*, dp: int, pp: int, tp: int, fits: Callable[[int, int, int], bool] = lambda *_: True) -> Mesh:
    """A mesh with axes ``dp, pp, tp``; to be called before anything else starts JAX's backends.

    Where JAX finds no accelerator it gets ``dp pp tp`` emulated CPU devices; several processes have started
    theirs when they joined (processes.py). The devices of one process follow each other in the mesh.

    fits: whether the rest of the run can do with another dp, pp and tp; a refusal names only those.

    Raises:
        InputError: there are fewer devices than the mesh needs; or more, and they are not emulated by this
            process alone, which costs nothing, but would lie idle.
    """
    wanted = dp * pp * tp
    is_one_of_several = jax.distributed.is_initialized()
    if not is_one_of_several:
        emulate(wanted)
    devices = find_devices()
    may_lie_idle = devices[0].platform == "cpu" and not is_one_of_several
    if len(devices) < wanted or (len(devices) > wanted and not may_lie_idle):
        exactly = "" if may_lie_idle else "exactly "
        raise InputError(
            f"mesh.dp={dp} x mesh.pp={pp} x mesh.tp={tp} needs {exactly}{wanted} devices, but there are "
            f"{len(devices)} ({devices[0].platform}), which fit "
            f"{', '.join(fitting_meshes(len(devices), (dp, pp, tp), fits=fits)) or 'no mesh of this run'}; "
            f"{_remedy(devices, wanted)}"
        )
    return jax.make_mesh(
        (dp, pp, tp), ("dp", "pp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=devices[:wanted]
    )


def make_float32_exact(platform: str, compute_dtype: jnp.dtype) -> None:
    """Make fp32 mean fp32 where an accelerator would round products to TF32 or bf16."""
    if compute_dtype == jnp.float32 and platform != "cpu":
        jax.config.update("jax_default_matmul_precision", "float32")


def fitting_meshes(
    num_devices: int,
    asked: tuple[int, int, int],
    *,
    fits: Callable[[int, int, int], bool] = lambda *_: True,
    most: int = 6,
) -> list[str]:
    """Meshes of so many devices, ``dp 2 x pp 4 x tp 1``, those first that change the fewest of the values."""
    sizes = [size for size in range(1, num_devices + 1) if num_devices % size == 0]
    meshes = [
        (num_devices // (pp * tp), pp, tp) for pp in sizes for tp in sizes if num_devices % (pp * tp) == 0
    ]

    def distance(mesh: tuple[int, int, int]) -> tuple[int, float]:
        pairs = list(zip(mesh, asked, strict=True))
        return sum(size != wish for size, wish in pairs), sum(
            abs(math.log(size / wish)) for size, wish in pairs
        )

    nearest = (mesh for mesh in sorted(meshes, key=distance) if fits(*mesh))
    return [f"dp {dp} x pp {pp} x tp {tp}" for dp, pp, tp in islice(nearest, most)]


def _remedy(devices: list[jax.Device], wanted: int) -> str:
    if jax.distributed.is_initialized():
        share = max(wanted // jax.process_count(), 1)
        emulation = f"set JAX_NUM_CPU_DEVICES={share}, " if devices[0].platform == "cpu" else ""
        return f"{emulation}use another mesh, or another number of processes than {jax.process_count()}"
    is_cpu = devices[0].platform == "cpu"
    if is_cpu:
        return f"use one of these, or correct {_EMULATION_FLAG} in XLA_FLAGS"
    emulation = f"set JAX_PLATFORMS=cpu to emulate {wanted}, which does for --dry-run"
    return f"use one of these, hide devices from JAX, or {emulation}"
