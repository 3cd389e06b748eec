"""The executor's own ticks as a stopwatch: a stage of some layers, on some ranks, that runs what it is told.

Weights are random and lie as the executor reads them, already in the compute dtype; there is no optimizer
state. So a device holds weights, accumulators and one slot of each kind, and no more.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpipe.models.attention import attention_for
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import Batch, Layout, Program, Settings, Sharding, Tree, to_stage_layout
from jaxpipe.pipeline.contract import VOCABULARY_GROUPS
from jaxpipe.pipeline.executor import Columns, make_given_ticks
from jaxpipe.pipeline.remat import Remat
from jaxpipe.pipeline.sharding import stage_shardings
from jaxpipe.profiling.rows import What, rows_of, table_of
from jaxpipe.schedules.placement import looped
from jaxpipe.training.devices import compiler_options

_FILL = 0.02
"""What slots hold until something is written there: numbers like any other."""


@dataclass(frozen=True)
class Sizes:
    """What is measured: sizes on one device, of one microbatch.

    vocabulary_rows: of embedding and of head, on a device.
    isolates_documents: whether layers look at segments and positions.
    """

    model: LlamaConfig
    batch: int
    sequence_length: int
    vocabulary_rows: int
    compute_dtype: str
    tp: int
    sequence_parallel: bool
    isolates_documents: bool


@dataclass(frozen=True)
class Bench:
    """Ranks with layers on them, and a microbatch; ``params`` lie in stage layout as the ticks read them."""

    sizes: Sizes
    mesh: Mesh
    num_layers: int
    params: Tree
    batch: Batch
    constants: Tree

    @property
    def num_ranks(self) -> int:
        return self.mesh.shape["pp"]


@dataclass(frozen=True, eq=False)
class Stopwatch:
    """A compiled program of a number of rows.

    run: ``(what, in how many rows, on how many ranks)``, done when it returns.
    """

    run: Callable[[What, int, int], None]


def make_bench(sizes: Sizes, devices: Sequence[jax.Device], *, num_layers: int) -> Bench:
    """A pipeline over all ``devices``, ``sizes.tp`` a rank, of ``num_layers`` a rank."""
    mesh = jax.make_mesh(
        (1, len(devices) // sizes.tp, sizes.tp),
        ("dp", "pp", "tp"),
        axis_types=(AxisType.Auto,) * 3,
        devices=devices,
    )
    layout = _layout(sizes, mesh, num_layers)
    everywhere = NamedSharding(mesh, PartitionSpec())
    return Bench(
        sizes=sizes,
        mesh=mesh,
        num_layers=num_layers,
        params=_params(sizes, layout, mesh),
        batch=_batch(sizes, layout.vocab_size, mesh),
        constants=jax.device_put(llama_constants(sizes.model, sizes.sequence_length), everywhere),
    )


def make_stopwatch(
    bench: Bench, *, kinds: Collection[What], remat: Remat, num_rows: int, sends: bool = False
) -> Stopwatch:
    """Compile a program of ``num_rows`` that has these kinds, and messages at every tick if it ``sends``."""
    sizes, mesh = bench.sizes, bench.mesh
    table = table_of(kinds, num_ranks=bench.num_ranks, sends=sends)
    dtype = jnp.dtype(sizes.compute_dtype)
    program = Program(
        llama_contract(sizes.model, attention_for(mesh.devices.flat[0].platform, dtype)),
        table,
        _layout(sizes, mesh, bench.num_layers),
        mesh,
        Settings(remat=remat, compute_dtype=dtype, fill=_FILL),
    )
    arguments = bench.params, bench.batch, bench.constants

    def columns(what: What, count: int, ranks: int) -> Columns:
        return Columns(*rows_of(table, what, num_rows=num_rows, num_acting=count, num_ranks=ranks))

    lowered = jax.jit(make_given_ticks(program)).lower(*arguments, columns("embed", 0, 1))
    compiled = lowered.compile(compiler_options(mesh.devices.flat[0].platform))
    lie = compiled.input_shardings[0][-1]

    def run(what: What, count: int, ranks: int) -> None:
        given = jax.device_put(columns(what, count, ranks), lie)
        jax.block_until_ready(compiled(*arguments, given))

    return Stopwatch(run)


def _layout(sizes: Sizes, mesh: Mesh, num_layers: int) -> Layout:
    num_ranks = mesh.shape["pp"]
    vocab_size = sizes.vocabulary_rows * num_ranks * sizes.tp
    sharding = Sharding(
        tp=sizes.tp, sequence=sizes.sequence_parallel, splits=llama_contract(sizes.model, "einsum").splits
    )
    return Layout(looped(num_ranks), (num_layers,) * num_ranks, vocab_size, sharding)


def _params(sizes: Sizes, layout: Layout, mesh: Mesh) -> Tree:
    dtype = jnp.dtype(sizes.compute_dtype)
    model = replace(sizes.model, num_hidden_layers=layout.num_layers, vocab_size=layout.vocab_size)

    def make() -> Tree:
        params = to_stage_layout(init_llama(model, 0), layout)
        layers = params["layers"]
        kernels = jax.tree.map(lambda leaf: leaf.astype(dtype), layers["kernels"])
        vocabulary = {group: params[group].astype(dtype) for group in VOCABULARY_GROUPS if group in params}
        return params | {"layers": layers | {"kernels": kernels}} | vocabulary

    return jax.jit(make, out_shardings=stage_shardings(jax.eval_shape(make), mesh, layout.sharding))()


def _batch(sizes: Sizes, vocab_size: int, mesh: Mesh) -> Batch:
    """One microbatch of random tokens; every sample is one document."""
    shape = (1, sizes.batch, sizes.sequence_length)
    tokens, labels = (
        jax.random.randint(key, shape, 0, vocab_size) for key in jax.random.split(jax.random.key(0))
    )
    extras = {
        "positions": jnp.broadcast_to(jnp.arange(sizes.sequence_length), shape),
        "segments": jnp.zeros(shape, jnp.int32),
    }
    batch = Batch(tokens, labels, extras if sizes.isolates_documents else {})
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec(None, "dp")))
