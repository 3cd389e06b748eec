"""A run that starts from weights of Hugging Face: its directory with checkpoint 0, from which it resumes.

The checkpoint is what a run would save before its first step: the position in the text, moments of zero, and
the weights instead of random ones. They are read straight into the layout of checkpoints (state.py), by each
process those of its own devices and no others: no host holds the model, nor all layers of one array unless
one of its devices does. ``imported.txt`` is written first and ``config.yaml`` last. So a directory that has
the latter has the weights, too; and one that has the former alone is known as what a killed import has left.
"""

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import jax
import jax.numpy as jnp

from jaxpipe.checkpoint.checkpoints import open_checkpoints
from jaxpipe.checkpoint.restoring import some_of
from jaxpipe.checkpoint.template import named_leaves
from jaxpipe.config import Config, DistributedConfig, flatten, to_yaml
from jaxpipe.errors import InputError, NotFiniteError
from jaxpipe.hugging_face.reader import Weights, not_finite, read_part
from jaxpipe.hugging_face.tensor_names import leaves_of
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.pipeline import Tree
from jaxpipe.training.atomic_write import write_text_atomically
from jaxpipe.training.global_arrays import from_parts
from jaxpipe.training.loop import Start
from jaxpipe.training.own_schedule import with_own_schedule, write_own_schedule
from jaxpipe.training.preparation import Prepared, prepare
from jaxpipe.training.processes import is_first, joined, same_in_all, wait_for_all
from jaxpipe.training.resume import checkpoint_info
from jaxpipe.training.run_directory import (
    RunDirectory,
    claim_run_directory,
    remove_import,
    run_directory,
    write_config,
)
from jaxpipe.training.run_tokenizer import keep_tokenizer
from jaxpipe.training.state import canonical_template

_PARAMS = "params."


def import_weights(config: Config, weights: Weights, *, advance: Callable[[int], None]) -> bool:
    """Make the run of ``config``, whose model ``weights`` is; whether this process is the one that tells so.

    Alone or as one of several processes, like ``train``.

    Args:
        advance: called with the number of elements of each array that has been read.

    Raises:
        InputError: text, devices or directory show that it cannot be done, or a weight is not finite.
        OSError: something could not be written; there is no run then.
    """
    path = config.run.dir
    assert path is not None, "the parser has it"
    num_devices = config.mesh.dp * config.mesh.pp * config.mesh.tp
    with joined(config.distributed, num_devices=num_devices):
        # how the processes found each other is no part of what the run is
        config = dataclasses.replace(config, distributed=DistributedConfig())
        prepared = prepare(config)
        sizes = {name: tensor.num_bytes for name, tensor in weights.tensors.items()}
        text = {"the text's digest": prepared.batches.get_state()["text"]}
        same_in_all(flatten(config) | text | {"the sizes of the weights": sizes})
        claimed = claim_run_directory(path, resume=False) if is_first() else nullcontext(run_directory(path))
        with claimed as directory:
            _write_run(config, prepared, weights, directory, advance)
            wait_for_all()
        return is_first()


def canonical_state(
    model: LlamaConfig, weights: Weights, like: Tree, *, advance: Callable[[int], None]
) -> Tree:
    """A state that lies as ``like`` says, a ``canonical_template``: the weights, and zeros for the rest."""
    leaves = {_PARAMS + leaf.name: leaf for leaf in leaves_of(model)}
    arrays = {}
    for name, template in named_leaves(like).items():
        if name in leaves:
            leaf = leaves[name]
            assert leaf.shape == template.shape, (leaf, template)
            arrays[name] = from_parts(leaf.shape, template.sharding, partial(read_part, weights, leaf))
            advance(arrays[name].size)
        else:
            assert not name.startswith(_PARAMS), name
            arrays[name] = _zeros(template)
    return jax.tree.unflatten(jax.tree.structure(like), arrays.values())


def _write_run(
    config: Config,
    prepared: Prepared,
    weights: Weights,
    directory: RunDirectory,
    advance: Callable[[int], None],
) -> None:
    """Whence the weights are, checkpoint 0, then the configuration; if that fails, nothing."""
    plan, mesh, config = prepared.plan, prepared.mesh, with_own_schedule(config)
    tokenizer = prepared.corpus.tokenizer
    like = canonical_template(plan.init_params, plan.optimizer, layout=plan.program.layout, mesh=mesh)
    try:
        if is_first():
            write_text_atomically(directory.imported, f"{weights.directory.resolve()}\n")
            write_own_schedule(config, directory, plan.schedule)
            keep_tokenizer(directory, tokenizer)
        with open_checkpoints(directory.checkpoints, keep=config.checkpoint.keep) as checkpoints:
            state = canonical_state(config.model, weights, like, advance=advance)
            info = checkpoint_info(config, prepared.batches, Start(is_saved=True), tokenizer=tokenizer)
            checkpoints.save(0, state, info)
        if is_first():
            write_config(directory, to_yaml(config))
    except BaseException as error:
        if is_first():
            remove_import(directory)
        if isinstance(error, NotFiniteError):
            raise InputError(_not_finite_words(weights, config.model, str(error))) from error
        raise


def _not_finite_words(weights: Weights, model: LlamaConfig, said: str) -> str:
    """``said`` names leaves; the tensors that are to blame are found in the files once more."""
    leaves = [leaf for leaf in leaves_of(model) if _PARAMS + leaf.name in said]
    names = [name for leaf in leaves for name in not_finite(weights, leaf)]
    return f"the weights of {weights.directory} must be finite, but {said}; that is in {some_of(names)}"


def _zeros(template: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.jit(lambda: jnp.zeros(template.shape, template.dtype), out_shardings=template.sharding)()
