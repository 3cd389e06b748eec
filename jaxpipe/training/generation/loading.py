"""The parameters of a checkpoint on a few devices, to be read and not trained: no moments, no step."""

from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh

from jaxpipe.checkpoint.manifest import Manifest
from jaxpipe.checkpoint.restoring import restore_arrays
from jaxpipe.errors import InputError
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama
from jaxpipe.pipeline import Layout, Tree
from jaxpipe.pipeline.contract import VOCABULARY_GROUPS
from jaxpipe.pipeline.resharding import canonical_shardings, reshard_to_stage
from jaxpipe.pipeline.sharding import stage_shardings
from jaxpipe.training.devices import emulate, find_devices


def make_reading_mesh(*, pp: int, tp: int) -> Mesh:
    """The first ``pp tp`` devices, emulated where there are no others; the rest may lie idle.

    InputError if there are fewer.
    """
    emulate(pp * tp)
    devices = find_devices()
    if len(devices) < pp * tp:
        raise InputError(
            f"--pp {pp} x --tp {tp} needs {pp * tp} devices, but there are {len(devices)} "
            f"({devices[0].platform}); use fewer"
        )
    return jax.make_mesh(
        (1, pp, tp), ("dp", "pp", "tp"), axis_types=(AxisType.Auto,) * 3, devices=devices[: pp * tp]
    )


def load_params(
    folder: Path, manifest: Manifest, model: LlamaConfig, *, layout: Layout, mesh: Mesh, dtype: jnp.dtype
) -> Tree:
    """In stage layout, what products use in ``dtype``, the rest as it was saved.

    Raises:
        InputError: the checkpoint in ``folder`` is of another model.
        CheckpointError, DamagedError: it cannot be read, or is not what was saved.
    """
    shapes = jax.eval_shape(lambda: init_llama(model, 0))
    like = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        canonical_shardings(shapes, layout, mesh),
    )
    stored = {name: array for name, array in manifest.arrays.items() if name.startswith("params.")}
    canonical = restore_arrays(folder, stored, {"params": like})["params"]

    def place(canonical: Tree) -> Tree:
        params = reshard_to_stage(canonical, layout, mesh)
        for group in (*VOCABULARY_GROUPS, "kernels"):
            holder = params["layers"] if group == "kernels" else params
            if group in holder:
                holder[group] = jax.tree.map(lambda leaf: leaf.astype(dtype), holder[group])
        return params

    shardings = stage_shardings(jax.eval_shape(place, canonical), mesh, layout.sharding)
    return jax.jit(place, out_shardings=shardings)(canonical)
