"""The same run twice gives the same bits: what XLA needs for that, before it starts."""

import os

import jax

from jaxpipe.config.xla_flags import VARIABLE, check_determinism, has_determinism, with_determinism
from jaxpipe.errors import InputError

_ONLY_BEFORE = "jax_num_cpu_devices"
"""An option of JAX that can be changed only until the devices start."""


def make_deterministic() -> str:
    """Set what XLA needs in this process's environment, from where JAX reads it once; the flags then.

    Raises:
        InputError: the environment says the contrary, or JAX's devices have started without it.
    """
    flags = os.environ.get(VARIABLE, "")
    for fault in check_determinism(True, flags):
        raise InputError(fault)
    if not has_determinism(flags):
        if _devices_have_started():
            raise InputError(
                f"run.deterministic must be set before JAX starts its devices, as XLA then reads {VARIABLE}, "
                f"but it has; start train.py, or set {VARIABLE}={with_determinism('')} before"
            )
        os.environ[VARIABLE] = with_determinism(flags)
    return os.environ[VARIABLE]


def _devices_have_started() -> bool:
    """Whether JAX refuses to change an option that can be changed only before; it is left as it was."""
    before = getattr(jax.config, _ONLY_BEFORE)
    try:
        jax.config.update(_ONLY_BEFORE, before + 2)  # -1 means unset
    except RuntimeError:
        return True
    jax.config.update(_ONLY_BEFORE, before)
    return False
