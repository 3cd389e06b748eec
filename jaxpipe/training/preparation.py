"""What a run is made of, before it has a directory, and the programs that it compiles.

Most of what can be refused is refused here: the text, the devices.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpipe.config import Config, faults
from jaxpipe.data import DOCUMENT_ARRAYS, Batches, Sources, open_sources, validation_batches
from jaxpipe.pipeline import Batch, Tree, make_loss
from jaxpipe.training.devices import make_float32_exact, make_mesh
from jaxpipe.training.evaluation import Evaluation
from jaxpipe.training.global_arrays import to_devices
from jaxpipe.training.plan import Plan, make_plan
from jaxpipe.training.slotted_step import SlottedStep, compile_slotted_step
from jaxpipe.training.state import TrainState
from jaxpipe.training.step import (
    batch_shapes,
    to_microbatches,
)


class Prepared(NamedTuple):
    """All that needs no run directory; the evaluation is not compiled yet."""

    mesh: Mesh
    plan: Plan
    corpus: Sources
    batches: Batches
    constants: Tree
    evaluation: Evaluation | None


def prepare(config: Config) -> Prepared:
    """Read the text, start the devices; most of what can be refused is refused here."""
    corpus = open_sources(
        config.data.path,
        field=config.data.field,
        validation_fraction=config.data.validation_fraction,
        tokenizer=config.data.tokenizer,
        end_of_document=config.data.end_of_document,
        weights=config.data.weights,
        vocab_size=config.model.vocab_size,
    )
    mesh = mesh_of(config)
    plan = make_plan(config, mesh)
    batches = Batches(
        corpus.training,
        sequence_length=config.data.sequence_length,
        batch_size=config.train.global_batch_size,
        seed=config.run.seed,
        weights=corpus.weights,
        isolate=config.data.isolate_documents,
    )
    everywhere = NamedSharding(mesh, PartitionSpec())
    constants = jax.tree.map(lambda array: to_devices(array, everywhere), plan.make_constants())
    evaluation = _make_evaluation(config, plan, corpus, constants)
    return Prepared(mesh, plan, corpus, batches, constants, evaluation)


def compile_training(
    config: Config, prepared: Prepared, state: TrainState, *, timed: bool = False
) -> tuple[SlottedStep, float]:
    """The compiled step, and how many seconds that took; ``timed``: with marks, for ``run.trace_step``."""
    began = time.perf_counter()
    step = compile_slotted_step(
        prepared.plan.program,
        prepared.plan.optimizer,
        state,
        shapes_of(config, prepared.mesh),
        constants=prepared.constants,
        skip_non_finite=skips(config),
        timed=timed,
    )
    return step, time.perf_counter() - began


def skips(config: Config) -> bool:
    """Whether a step that is not finite is skipped."""
    return config.train.non_finite == "skip"


def compile_evaluation(config: Config, prepared: Prepared, state: TrainState) -> Evaluation | None:
    """The evaluation with its program compiled, so that its first batch takes no longer than the others."""
    evaluation = prepared.evaluation
    if evaluation is None:
        return None
    batch = shapes_of(config, prepared.plan.evaluation.mesh, evaluation.batches.batch_size)
    lowered = jax.jit(evaluation.summed_loss).lower(state.params, batch, prepared.constants)
    return evaluation._replace(summed_loss=lowered.compile())


def mesh_of(config: Config) -> Mesh:
    """The mesh; and fp32 is made to mean fp32 where an accelerator would round products to TF32 or bf16."""

    def fits(dp: int, pp: int, tp: int) -> bool:
        mesh = dataclasses.replace(config.mesh, dp=dp, pp=pp, tp=tp)
        return not faults(dataclasses.replace(config, mesh=mesh))

    mesh = make_mesh(dp=config.mesh.dp, pp=config.mesh.pp, tp=config.mesh.tp, fits=fits)
    make_float32_exact(mesh.devices.flat[0].platform, jnp.dtype(config.train.compute_dtype))
    return mesh


def cut_for(config: Config, mesh: Mesh) -> Callable[[dict], Batch]:
    """From a batch of the host to microbatches on the devices."""

    def cut(batch: dict) -> Batch:
        return to_microbatches(
            batch["tokens"],
            batch["labels"],
            num_microbatches=config.pipeline.num_microbatches,
            mesh=mesh,
            extras={name: batch[name] for name in _extras(config)},
        )

    return cut


def shapes_of(config: Config, mesh: Mesh, batch_size: int | None = None) -> Batch:
    """Shapes and shardings of a batch on the devices; of a training step, unless the size is given."""
    return batch_shapes(
        batch_size or config.train.global_batch_size,
        config.data.sequence_length,
        num_microbatches=config.pipeline.num_microbatches,
        mesh=mesh,
        extras=_extras(config),
    )


def _extras(config: Config) -> tuple[str, ...]:
    """What layers want to know of a batch beside its tokens."""
    return DOCUMENT_ARRAYS if config.data.isolate_documents else ()


def _make_evaluation(config: Config, plan: Plan, corpus: Sources, constants: Tree) -> Evaluation | None:
    if config.train.eval_every == 0:
        return None
    batches = validation_batches(
        corpus.validation,
        sequence_length=config.data.sequence_length,
        batch_size=config.train.eval_batch_size or config.train.global_batch_size,
        num_batches=config.train.eval_batches,
        weights=corpus.weights,
        isolate=config.data.isolate_documents,
    )
    cut = cut_for(config, plan.evaluation.mesh)
    return Evaluation(make_loss(plan.evaluation), batches, cut, constants)
