"""What the remat policies store and repeat: the table in docs/measurements.md.

    python -m benchmarks.remat

The model of configs/bench.yaml. Every policy gives one JSON line on standard output:

    remat
    residuals, linear_inputs,         bytes for each token and layer: what F leaves for B, what F
    weight_inputs                     leaves for W, what B leaves for W
    forward, backward, weight         floating-point operations of a layer's F, B and W, in millions for each
                                      token, as XLA counts them
    temp_bytes                        of each schedule, of a device, beside state and batch
"""

import json
import math
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.cases import CONFIG, NUM_RANKS

if TYPE_CHECKING:
    from jax.sharding import Mesh

SCHEDULES = {"1f1b": True, "zb_h1": False}
"""With ``fuse_backward``: 1f1b has BW as one action, zb_h1 all B and W on ticks of their own."""


def main() -> int:
    """Measure and print."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    from jaxpipe.training.devices import make_mesh  # loads JAX, which reads the environment

    mesh = make_mesh(dp=1, pp=NUM_RANKS, tp=1)
    for remat in ("full", "selective", "none"):
        print(json.dumps({"remat": remat, **layer_figures(remat), **step_figures(remat, mesh)}), flush=True)
    return 0


def layer_figures(remat: Any) -> dict[str, float]:
    """Of one layer and one microbatch, without a pipeline."""
    import jax
    import jax.numpy as jnp

    from jaxpipe.config import from_yaml
    from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
    from jaxpipe.pipeline.split_vjp import split_layer, weight_gradients

    config = from_yaml(CONFIG.read_text(), name=CONFIG.name)
    params = jax.tree.map(lambda leaf: leaf[0], init_llama(config.model, 0)["layers"])
    batch = config.train.global_batch_size // config.pipeline.num_microbatches
    tokens = batch * config.data.sequence_length
    x = jnp.zeros((batch, config.data.sequence_length, config.model.hidden_size))
    context: tuple = llama_constants(config.model, config.data.sequence_length), {}
    layer = llama_contract(config.model, "einsum").layer
    split = split_layer(layer, params, x, context=context, remat=remat)
    linear_inputs: Any = split.linear_inputs
    looked_at = {group: linear_inputs[group] for group in split.looked_at}

    def stored(tree: Any) -> float:
        leaves = jax.tree.leaves(tree)
        return round(sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves) / tokens)

    def flops(function: Any, *arguments: Any) -> float:
        cost = jax.jit(function).lower(*arguments).compile().cost_analysis()
        assert cost is not None, "this backend does not count operations"
        return round(cost["flops"] / tokens / 1e6, 3)

    return {
        "residuals": stored(split.residuals),
        "linear_inputs": stored(linear_inputs),
        "weight_inputs": stored(split.weight_inputs),
        "forward": flops(split.forward, params, x, context),
        "backward": flops(split.backward, params, split.residuals, looked_at, x, context),
        "weight": flops(weight_gradients, split.complete(split.weight_inputs, linear_inputs)),
    }


def step_figures(remat: Any, mesh: "Mesh") -> dict[str, dict[str, int]]:
    """Of the compiled training step of each schedule."""
    from benchmarks.programs import pipelined_step, task_of
    from jaxpipe.config import from_yaml
    from jaxpipe.training.plan import make_plan

    temp_bytes = {}
    for schedule, fuse in SCHEDULES.items():
        config = from_yaml(CONFIG.read_text(), name=CONFIG.name)
        pipeline = replace(config.pipeline, schedule=schedule, fuse_backward=fuse, remat=remat)
        config = replace(config, pipeline=pipeline)
        plan = make_plan(config, mesh)
        temp_bytes[schedule] = pipelined_step(plan.program, task_of(plan, config)).compiled.temp_bytes
    return {"temp_bytes": temp_bytes}


if __name__ == "__main__":
    sys.exit(main())
