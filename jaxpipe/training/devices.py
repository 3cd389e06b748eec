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
    is_one_of_several = jax.distributed.is_initialized()
    if not is_one_of_several:
        emulate(wanted)
    devices = find_devices()
    if len(devices) < wanted or (is_one_of_several and len(devices) > wanted):
        exactly = "exactly " if is_one_of_several else ""
        raise InputError(
            f"mesh.dp={dp} x mesh.pp={pp} x mesh.tp={tp} needs {exactly}{wanted} devices, but there are "
            f"{len(devices)} ({devices[0].platform}); {_remedy(devices, wanted)}"
        )
    return jax.make_mesh(
        (dp, pp, tp), ("dp", "pp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=devices[:wanted]
    )


def _remedy(devices: list[jax.Device], wanted: int) -> str:
    if jax.distributed.is_initialized():
        share = max(wanted // jax.process_count(), 1)
        emulation = f"set JAX_NUM_CPU_DEVICES={share}, " if devices[0].platform == "cpu" else ""
        return f"{emulation}use another mesh, or another number of processes than {jax.process_count()}"
    is_cpu = devices[0].platform == "cpu"
    first = f"correct {_EMULATION_FLAG} in XLA_FLAGS" if is_cpu else "set JAX_PLATFORMS=cpu to emulate them"
    return f"{first}, or use a mesh of at most {len(devices)}"
