"""A prompt, continued by the model of a checkpoint."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.checkpoint.manifest import Manifest
from jaxpipe.config import Config
from jaxpipe.models.attention import attention_for
from jaxpipe.models.llama_stage import llama_constants, llama_contract
from jaxpipe.pipeline import Layout, Sharding, balanced_layers
from jaxpipe.pipeline.decode import Decoder
from jaxpipe.pipeline.sampling import Sampling
from jaxpipe.schedules.placement import looped
from jaxpipe.training.generation.loading import load_params, make_reading_mesh
from jaxpipe.training.generation.programs import compile_generation, generate


def continue_prompt(
    folder: Path,
    manifest: Manifest,
    config: Config,
    *,
    prompt: Sequence[int],
    num_samples: int,
    num_tokens: int,
    sampling: Sampling,
    end: int,
    seed: int,
    pp: int = 1,
    tp: int = 1,
    on_activity: Callable[[str], None] = lambda _: None,
) -> Iterator[np.ndarray]:
    """The new tokens so far, ``[samples, tokens]``, again and again until all are there (programs.py).

    pp, tp: how many devices share the layers, and each layer.
    on_activity: told what begins, in words, before there are tokens.

    Raises:
        InputError: there are too few devices; the arrays in ``folder`` are not those of this model.
        CheckpointError: they cannot be read.
    """
    on_activity("starting the devices")
    mesh = make_reading_mesh(pp=pp, tp=tp)
    dtype = jnp.dtype(config.train.compute_dtype)
    platform = mesh.devices.flat[0].platform
    if dtype == jnp.float32 and platform != "cpu":
        jax.config.update("jax_default_matmul_precision", "float32")
    model = config.model
    contract = llama_contract(model, attention_for(platform, dtype))
    layers = balanced_layers(model.num_hidden_layers, pp)
    layout = Layout(looped(pp), layers, model.vocab_size, Sharding(tp=tp, splits=contract.splits))
    on_activity("reading the checkpoint")
    params = load_params(folder, manifest, model, layout=layout, mesh=mesh, dtype=dtype)
    on_activity("compiling")
    generation = compile_generation(
        Decoder(contract, layout, mesh, dtype),
        params,
        make_constants=lambda length: llama_constants(model, length),
        prompt=prompt,
        num_samples=num_samples,
        num_tokens=num_tokens,
        sampling=sampling,
        end=end,
    )
    on_activity("reading the prompt")
    yield from generate(generation, params, seed=seed)
