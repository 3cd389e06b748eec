"""The logits of a checkpoint's parameters, by the un-pipelined model on one CPU device: for tools."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int32

from jaxpipe.checkpoint.leaves import read_leaf
from jaxpipe.checkpoint.manifest import Manifest
from jaxpipe.checkpoint.template import named_leaves
from jaxpipe.models.attention import attention_for
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.training.reference import reference_logits


def saved_logits(
    folder: Path, manifest: Manifest, model: LlamaConfig, tokens: Int32[np.ndarray, "b s"]
) -> Float[np.ndarray, "b s n"]:
    """fp32 logits of the parameters in ``folder``, whose model and manifest these are.

    Raises:
        CheckpointError: they cannot be read.
    """
    like = {"params": jax.eval_shape(lambda: init_llama(model, 0))}
    arrays = [read_leaf(folder, name, manifest.arrays[name]) for name in named_leaves(like)]
    params = jax.tree.unflatten(jax.tree.structure(like), arrays)["params"]
    contract = llama_contract(model, attention_for("cpu", jnp.dtype(jnp.float32)))
    constants = llama_constants(model, tokens.shape[1])

    @jax.jit
    def logits(params: dict, tokens: jax.Array) -> jax.Array:
        return reference_logits(contract, params, tokens, constants, {})

    return np.asarray(logits(params, jnp.asarray(tokens, jnp.int32)))
