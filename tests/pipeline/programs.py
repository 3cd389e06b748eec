"""Compiled steps for the tests: canonical parameters go in, canonical gradients come out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import chex
import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxpipe.lowering import TickTable
from jaxpipe.pipeline import (
    Batch,
    Layout,
    LossAndGradients,
    Program,
    Settings,
    Sharding,
    StageContract,
    Tree,
    balanced_layers,
    make_loss,
    make_loss_and_gradients,
    to_canonical_layout,
    to_stage_layout,
)
from jaxpipe.pipeline.sharding import UNSHARDED


def _quick_options() -> dict[str, Any]:
    """The older emitters of kernels compile faster still, where XLA has them."""
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    with_older_emitters = options | {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 1.0).lower().compile(with_older_emitters)
    except jax.errors.JaxRuntimeError:
        return options
    return with_older_emitters


QUICK = _quick_options()
"""XLA runs all its passes over the program, LLVM hardly any: a fifth of the time (measured)."""

AS_ALWAYS: dict[str, Any] = {}
"""For tests that compare bits of one program with those of another: the options that training runs with."""


TOLERANCE = 1e-5
"""Of the numerics contract. Rounding of fp32 sums of a few hundred terms gives about 1e-6; a term lost or
counted twice, even one token of hundreds, gives 1e-3."""


@dataclass(frozen=True)
class Step:
    """A compiled program, with what it takes to feed it."""

    program: Program
    compiled: jax.stages.Compiled
    constants: Tree

    def __call__(self, params: Tree, batch: Batch) -> LossAndGradients:
        layout = self.program.layout
        result = self.compiled(to_stage_layout(params, layout), batch, self.constants)
        loss, num_tokens, gradients = jax.tree.map(np.asarray, result)
        return LossAndGradients(loss, num_tokens, to_canonical_layout(gradients, layout))


@dataclass(frozen=True)
class Evaluation:
    """A compiled forward-only program."""

    program: Program
    compiled: jax.stages.Compiled
    constants: Tree

    def __call__(self, params: Tree, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        staged = to_stage_layout(params, self.program.layout)
        return jax.tree.map(np.asarray, self.compiled(staged, batch, self.constants))


def make_mesh(*, dp: int, pp: int, tp: int = 1) -> Mesh:
    """Without the axis ``tp`` where it has one device: the executor takes both."""
    shape, names = ((dp, pp), ("dp", "pp")) if tp == 1 else ((dp, pp, tp), ("dp", "pp", "tp"))
    return jax.make_mesh(
        shape, names, axis_types=(AxisType.Auto,) * len(shape), devices=jax.devices()[: dp * pp * tp]
    )


def make_program(
    contract: StageContract,
    table: TickTable,
    params: Tree,
    *,
    layers_per_stage: tuple[int, ...] | None = None,
    dp: int = 1,
    sharding: Sharding = UNSHARDED,
    settings: Settings = Settings(fill=float("nan")),  # noqa: B008 (immutable)
) -> Program:
    """A program for canonical ``params``; buffers hold NaN until they are written, unless told otherwise."""
    placement, num_layers = table.placement, jax.tree.leaves(params["layers"])[0].shape[0]
    layers_per_stage = layers_per_stage or balanced_layers(num_layers, placement.num_stages)
    layout = Layout(placement, layers_per_stage, params["embedding"].shape[0], sharding)
    mesh = make_mesh(dp=dp, pp=placement.num_ranks, tp=sharding.tp)
    return Program(contract, table, layout, mesh, settings)


def compile_step(
    program: Program, params: Tree, batch: Batch, constants: Tree, *, options: dict[str, Any] = QUICK
) -> Step:
    """The other arguments serve for their shapes."""
    staged = to_stage_layout(params, program.layout)
    lowered = jax.jit(make_loss_and_gradients(program)).lower(staged, batch, constants)
    return Step(program, lowered.compile(options), constants)


def compile_evaluation(program: Program, params: Tree, batch: Batch, constants: Tree) -> Evaluation:
    lowered = jax.jit(make_loss(program)).lower(to_stage_layout(params, program.layout), batch, constants)
    return Evaluation(program, lowered.compile(QUICK), constants)


def assert_leaves_close(got: Tree, expected: Tree, *, tolerance: float) -> None:
    """Each leaf within ``tolerance`` of the largest value of the leaf expected; NaN is never close."""
    for name, leaf, wanted in _pairs(got, expected):
        assert leaf.shape == wanted.shape, f"{name}: {leaf.shape} is not {wanted.shape}"
        assert leaf.dtype == wanted.dtype, f"{name}: {leaf.dtype} is not {wanted.dtype}"
        largest, off = np.abs(wanted).max(), np.abs(leaf - wanted).max()
        assert off <= tolerance * largest, f"{name}: off by {off:.3e}, its largest value is {largest:.3e}"


def assert_same_bits(got: Tree, expected: Tree) -> None:
    """Every leaf equal, bit for bit; names the first that is not."""
    for name, leaf, wanted in _pairs(got, expected):
        assert leaf.dtype == wanted.dtype, name
        assert leaf.tobytes() == wanted.tobytes(), name


def _pairs(got: Tree, expected: Tree) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name and both values of each leaf of two trees that have the same structure."""
    chex.assert_trees_all_equal_structs(got, expected)
    for (path, leaf), wanted in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        yield jax.tree_util.keystr(path), np.asarray(leaf), np.asarray(wanted)
