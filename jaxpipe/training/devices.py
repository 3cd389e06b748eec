"""The devices of a run: emulated ones on CPU, as many as the mesh needs, without being asked."""

import os

import jax
from jax.sharding import AxisType, Mesh

from jaxpipe.errors import InputError

_EMULATION_FLAG = "--xla_force_host_platform_device_count"


def emulate(num_devices: int) -> None:
    """Give this process so many CPU devices, unless ``XLA_FLAGS`` already says how many.

    To be called before anything starts JAX's backends; does nothing to a GPU or TPU.
    """
    if _EMULATION_FLAG not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", num_devices)


def find_devices() -> list[jax.Device]:
    """The devices of all processes; InputError if JAX finds none."""
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts where the platform asked for has no plugin
        platforms = f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')} gives none"
        cause = (str(error).splitlines() or [platforms])[0]
        raise InputError(f"JAX must find devices, but: {cause}; correct or unset JAX_PLATFORMS") from error


def make_mesh(*, dp: int, pp: int, tp: int) -> Mesh:
    """A mesh with axes ``dp, pp, tp``; to be called before anything else starts JAX's backends.

    Where JAX finds no accelerator it gets ``dp pp tp`` emulated CPU devices; several processes have started
    theirs when they joined (processes.py). The devices of one process follow each other in the mesh.

    Raises:
        InputError: there are fewer devices than the mesh needs, or several processes have more of them.
    """
    wanted = dp * pp * tp
    if not jax.distributed.is_initialized():
        emulate(wanted)
    devices = find_devices()
    axes = f"mesh.dp={dp} x mesh.pp={pp} x mesh.tp={tp}"
    kind = devices[0].platform
    if jax.process_count() > 1 and len(devices) != wanted:
        num_processes = jax.process_count()
        emulation = f"set JAX_NUM_CPU_DEVICES={max(wanted // num_processes, 1)}, or " if kind == "cpu" else ""
        raise InputError(
            f"{axes} = {wanted} must be the number of devices of all processes, but {num_processes} processes "
            f"have {len(devices)} ({kind}); {emulation}change the mesh or the number of processes"
        )
    if len(devices) < wanted:
        remedy = (
            f"correct {_EMULATION_FLAG} in XLA_FLAGS"
            if kind == "cpu"
            else "set JAX_PLATFORMS=cpu to emulate them"
        )
        raise InputError(
            f"{axes} needs {wanted} devices, but there are {len(devices)} ({kind}); {remedy}, "
            f"or use a mesh of at most {len(devices)}"
        )
    return jax.make_mesh(
        (dp, pp, tp), ("dp", "pp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=devices[:wanted]
    )
