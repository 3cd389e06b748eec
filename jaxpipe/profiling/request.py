"""What a configuration asks to be measured, and on which devices."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxpipe.config import Config
from jaxpipe.errors import InputError
from jaxpipe.pipeline.vocabulary import padded_vocabulary
from jaxpipe.profiling.measure import Profile, measure
from jaxpipe.profiling.ticks import Sizes
from jaxpipe.training.determinism import make_deterministic
from jaxpipe.training.devices import emulate, find_devices, make_float32_exact
from jaxpipe.training.plan import optimizer_of


def profile(config: Config, *, stage_layers: int, num_rounds: int, advance: Callable[[int], None]) -> Profile:
    """Measure what ``config`` would run; see ``measure``. To be called before JAX's devices start.

    Raises:
        InputError: there are too few devices for one rank, or they have too little memory.
    """
    if config.run.deterministic:
        make_deterministic()
    mesh = config.mesh
    devices = _devices(num_ranks=mesh.dp * mesh.pp, tp=mesh.tp)
    make_float32_exact(devices[0].platform, jnp.dtype(config.train.compute_dtype))
    return measure(
        sizes_of(config),
        devices,
        stage_layers=stage_layers,
        vocabulary_shards=mesh.pp * mesh.tp,
        optimizer=optimizer_of(config),
        num_rounds=num_rounds,
        advance=advance,
    )


def sizes_of(config: Config) -> Sizes:
    """On one device; the vocabulary is shared as in the configuration, however many devices are at hand."""
    mesh, shards = config.mesh, config.mesh.pp * config.mesh.tp
    return Sizes(
        model=config.model,
        batch=config.train.global_batch_size // (config.pipeline.num_microbatches * mesh.dp),
        sequence_length=config.data.sequence_length,
        vocabulary_rows=padded_vocabulary(config.model.vocab_size, shards) // shards,
        compute_dtype=config.train.compute_dtype,
        tp=mesh.tp,
        sequence_parallel=mesh.sequence_parallel,
        isolates_documents=config.data.isolate_documents,
    )


def _devices(*, num_ranks: int, tp: int) -> list[jax.Device]:
    """Those of as many ranks as there are devices for; on CPU they are emulated."""
    emulate(num_ranks * tp)
    devices = find_devices()
    if len(devices) < tp:
        raise InputError(
            f"mesh.tp={tp} needs {tp} devices for one rank, but there are {len(devices)} "
            f"({devices[0].platform}); give --mesh.tp {len(devices)} or less"
        )
    return devices[: min(num_ranks, len(devices) // tp) * tp]
