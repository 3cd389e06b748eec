"""The devices of a run: emulated ones on CPU, as many as the mesh needs, without being asked."""

import os

import jax
from jax.sharding import AxisType, Mesh

from jaxpipe.errors import InputError

_EMULATION_FLAG = "--xla_force_host_platform_device_count"


def make_mesh(*, dp: int, pp: int, tp: int) -> Mesh:
    """A mesh with axes ``dp, pp, tp``; to be called before anything else starts JAX's backends.

    Where JAX finds no accelerator it gets ``dp pp tp`` emulated CPU devices, unless ``XLA_FLAGS`` already
    says how many. Emulation does nothing to a GPU or TPU.

    Raises:
        InputError: there are fewer devices than the mesh needs.
    """
    wanted = dp * pp * tp
    if _EMULATION_FLAG not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", wanted)
    try:
        devices = jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts where the platform asked for has no plugin
        platforms = f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')} gives none"
        cause = (str(error).splitlines() or [platforms])[0]
        raise InputError(f"JAX must find devices, but: {cause}; correct or unset JAX_PLATFORMS") from error
    if len(devices) < wanted:
        is_cpu = devices[0].platform == "cpu"
        remedy = (
            f"correct {_EMULATION_FLAG} in XLA_FLAGS" if is_cpu else "set JAX_PLATFORMS=cpu to emulate them"
        )
        raise InputError(
            f"mesh.dp={dp} x mesh.pp={pp} x mesh.tp={tp} needs {wanted} devices, but there are "
            f"{len(devices)} ({devices[0].platform}); {remedy}, or use a mesh of at most {len(devices)}"
        )
    return jax.make_mesh(
        (dp, pp, tp), ("dp", "pp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=devices[:wanted]
    )
