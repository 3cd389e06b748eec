"""A program takes its rows when it is called, and does with its own what the step does."""

import jax
import jax.numpy as jnp
import numpy as np
from programs import QUICK, compile_step, make_program
from tiny_llama import CONTRACT, make_batch, make_constants, make_params

from jaxpipe.lowering import lower
from jaxpipe.lowering.table import IDLE, NONE
from jaxpipe.pipeline import Settings, to_stage_layout
from jaxpipe.pipeline.executor import Columns, make_given_ticks
from jaxpipe.schedules import build


def test_given_rows_are_what_the_ticks_do() -> None:
    table = lower(build("1f1b", num_ranks=2, num_microbatches=3))
    params, batch, constants = make_params(), make_batch(3), make_constants()
    program = make_program(CONTRACT, table, params, settings=Settings())
    step = compile_step(program, params, batch, constants)(params, batch)
    staged = to_stage_layout(params, program.layout)
    columns = jax.tree.map(jnp.asarray, Columns(table.ranks, table.ends))
    run = jax.jit(make_given_ticks(program)).lower(staged, batch, constants, columns).compile(QUICK)

    buffers = run(staged, batch, constants, columns)
    np.testing.assert_allclose(buffers.ends.loss[0, 0], step.loss * step.num_tokens, rtol=1e-6)

    nobody = columns.ranks._replace(kind=jnp.full_like(columns.ranks.kind, IDLE))
    nowhere = columns.ends._replace(
        **{name: jnp.full_like(columns.ends.head, NONE) for name in ("embed", "head", "unembed")}
    )
    buffers = run(staged, batch, constants, Columns(nobody, nowhere))
    assert all(not np.any(leaf) for leaf in jax.tree.leaves((buffers.layer_gradients, buffers.ends)))
