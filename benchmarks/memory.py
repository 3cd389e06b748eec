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

from benchmarks.cases import CONFIG

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
    from benchmarks.programs import compile_pipelined, pipelined_shapes, task_of
    from jaxpipe.training.devices import make_mesh
    from jaxpipe.training.memory import step_memory
    from jaxpipe.training.plan import make_plan

    config = _config(flags)
    plan = make_plan(config, make_mesh(dp=config.mesh.dp, pp=config.mesh.pp, tp=config.mesh.tp))
    shapes = pipelined_shapes(plan.program, task_of(plan, config))
    compiled = compile_pipelined(plan.program, plan.optimizer, shapes, options=options)
    predicted = step_memory(plan.program, shapes.state.params, shapes.batch, shapes.constants)
    return Measured(compiled.total_bytes, compiled.temp_bytes, predicted)


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
