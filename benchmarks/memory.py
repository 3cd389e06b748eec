"""What a training step holds on each device, compiled and predicted: the figures of docs/memory.md.

    python -m benchmarks.memory [--picture docs/memory.svg]

The model of configs/bench.yaml on up to eight emulated devices, 2 sequences of each microbatch on each copy
of the pipeline. Nothing runs: what counts is XLA's buffer assignment. Every step gives one JSON line:

    flags           what differs from configs/bench.yaml
    compiled        bytes per device: arguments, results that overwrite none, temporaries
    temporary       of these the temporaries
    predicted       what ``--dry-run`` says together; and by part
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.bench import CONFIG

if TYPE_CHECKING:
    from jaxpipe.training.memory import StepMemory

Flags = Mapping[str, Any]

NUM_DEVICES = 8
QUICK = {"xla_backend_optimization_level": 0}
"""XLA runs all its passes over the program, LLVM hardly any: the same bytes in a third of the time."""

ZERO: list[Flags] = [
    {"mesh.dp": 2, "mesh.pp": pp, "mesh.zero": zero, "pipeline.remat": remat}
    for remat in ("full", "none")
    for pp in (1, 2, 4)
    for zero in (0, 1, 2, 3)
]
TENSOR: list[Flags] = [
    {"mesh.pp": 2, "mesh.tp": tp, "mesh.sequence_parallel": sequence, "pipeline.remat": remat}
    for remat in ("full", "selective", "none")
    for tp, sequence in ((1, False), (2, False), (2, True), (4, True))
]
STAGES: list[Flags] = [
    {"mesh.pp": 4, "pipeline.layers_per_stage": layers}
    for layers in ((2, 2, 2, 2), (1, 2, 2, 3), (1, 1, 1, 5))
]
PIPES: list[Flags] = [
    {"mesh.pp": 4, "pipeline.schedule": schedule, "pipeline.fuse_backward": False}
    for schedule in ("1f1b", "zb_h1", "chimera", "dualpipe")
]


class Measured(NamedTuple):
    """Bytes on one device, as the compiler counts them, and as they are predicted."""

    total: int
    temporary: int
    predicted: "StepMemory"


def measure(flags: Flags, options: Mapping[str, Any] = QUICK) -> Measured:
    """Compile the step of configs/bench.yaml with these flags, and predict it."""
    import jax

    from jaxpipe.pipeline import make_loss_and_gradients, to_stage_layout
    from jaxpipe.training.devices import make_mesh
    from jaxpipe.training.grad_norm import make_global_norm
    from jaxpipe.training.memory import step_memory
    from jaxpipe.training.optimizer import init_moments
    from jaxpipe.training.plan import make_plan
    from jaxpipe.training.state import TrainState, state_shardings
    from jaxpipe.training.step import batch_shapes, compile_step, make_train_step

    config = _config(flags)
    mesh = make_mesh(dp=config.mesh.dp, pp=config.mesh.pp, tp=config.mesh.tp)
    plan = make_plan(config, mesh)
    program, sharding = plan.program, plan.program.layout.sharding

    def init() -> TrainState:
        params = to_stage_layout(plan.init_params(), program.layout)
        return TrainState(params, init_moments(plan.optimizer, params))

    shapes = jax.eval_shape(init)
    state = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        state_shardings(shapes, mesh, sharding),
    )
    batch = batch_shapes(
        config.train.global_batch_size,
        config.data.sequence_length,
        num_microbatches=config.pipeline.num_microbatches,
        mesh=mesh,
    )
    constants = jax.eval_shape(plan.make_constants)
    train_step = make_train_step(
        make_loss_and_gradients(program), plan.optimizer, global_norm=make_global_norm(program.layout, mesh)
    )
    compiled = compile_step(
        train_step, state, batch, constants=constants, mesh=mesh, sharding=sharding, options=options
    )
    memory = compiled.memory_analysis()
    assert memory is not None, "this backend does not tell what a program allocates"
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Measured(
        memory.argument_size_in_bytes + results + memory.temp_size_in_bytes,
        memory.temp_size_in_bytes,
        step_memory(program, state.params, batch, constants),
    )


def _config(flags: Flags) -> Any:
    from jaxpipe.config import parse

    words = [str(CONFIG), "--train.global_batch_size", str(16 * flags.get("mesh.dp", 1)), "--dry-run"]
    for key, value in flags.items():
        as_word = " ".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
        words += [f"--{key}", *as_word.split()]
    return parse(words).config


def main(words: Sequence[str]) -> int:
    """Measure and print; draw if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--picture", type=Path, help="write an SVG of ZeRO at pp 2")
    path = parser.parse_args(words).picture
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={NUM_DEVICES}"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    drawn = {}
    for flags in (*ZERO, *TENSOR, *STAGES, *PIPES):
        measured = measure(flags)
        print(json.dumps(_row(flags, measured)), flush=True)
        if flags in ZERO and flags["mesh.pp"] == 2:
            drawn[f"ZeRO {flags['mesh.zero']}, remat {flags['pipeline.remat']}"] = measured
    if path is not None:
        from benchmarks.memory_picture import draw

        path.write_text(draw(drawn))
    return 0


def _row(flags: Flags, measured: Measured) -> dict[str, Any]:
    memory = measured.predicted
    return {
        "flags": flags,
        "compiled": measured.total,
        "temporary": measured.temporary,
        "predicted": memory.total,
        **{name: value for name, value in memory._asdict().items() if name != "padding"},
        "padding": memory.padding._asdict(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
