"""Schedules on emulated devices against the un-pipelined step: ``make bench``.

For each number of microbatches the un-pipelined step and the step of each schedule are compiled, then run in
turn, round by round. Every schedule gives one JSON line on standard output:

    schedule, ranks, microbatches     what was run
    remat, fuse_backward, num_ticks   how
    compile_seconds                   tracing, lowering and compiling, without a compilation cache
    temp_bytes_per_device             beside parameters, optimizer state and batch
    step_seconds                      a whole step, optimizer included: median, with _min and _max
    tokens_per_second                 of the median step
    unpipelined_seconds               the un-pipelined step: median
    ratio_to_unpipelined              median of the rounds' own ratios, with ratio_min and ratio_max
    rounds                            how many of them
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from benchmarks.criteria import misses
from benchmarks.picture import draw
from benchmarks.timing import ratios, spread, time_in_turn
from benchmarks.torch_peer import Experiment, Peer, model_of, open_peer

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxpipe.config import Config

CONFIG = Path(__file__).parents[1] / "configs" / "bench.yaml"
NUM_RANKS = 4

FUSED = {"gpipe": True, "1f1b": True, "zb_h1": True}
"""The lowering that is faster on emulated devices, where ticks are not free (docs/measurements.md)."""

PROGRESS = Console(stderr=True, highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if ``--check`` finds a figure that is not reached."""
    options = _parser().parse_args(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    from jaxpipe.training.devices import make_mesh  # loads JAX, which reads the environment

    mesh = make_mesh(dp=1, pp=NUM_RANKS, tp=1)
    rows = []
    with ExitStack() as stack:
        peer = None
        if options.torch:
            config = _config(options, options.schedules[0], options.microbatches[0])
            batch = config.train.global_batch_size // config.pipeline.num_microbatches
            sizes = model_of(config.model, sequence_length=config.data.sequence_length, batch=batch)
            peer = stack.enter_context(open_peer(sizes, num_ranks=NUM_RANKS))
        for num_microbatches in options.microbatches:
            for row in measure(options, num_microbatches, mesh=mesh, peer=peer):
                print(json.dumps(row), flush=True)
                rows.append(row)
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if options.picture:
        options.picture.write_text(draw(rows))
    missed = list(misses(rows))
    for sentence in missed:
        PROGRESS.print(f"missed: {sentence}", soft_wrap=True)
    return 1 if options.check and missed else 0


def measure(
    options: argparse.Namespace, num_microbatches: int, *, mesh: "Mesh", peer: Peer | None
) -> Iterator[dict[str, Any]]:
    """The rows of one number of microbatches."""
    from benchmarks.programs import Task, pipelined_step, random_text, unpipelined_step
    from jaxpipe.training.plan import make_plan
    from jaxpipe.training.reference import reference_loss_and_gradients

    configs = {schedule: _config(options, schedule, num_microbatches) for schedule in options.schedules}
    plans = {schedule: make_plan(config, mesh) for schedule, config in configs.items()}
    plan, config = plans[options.schedules[0]], configs[options.schedules[0]]
    text = random_text(
        num_microbatches,
        config.train.global_batch_size // num_microbatches,
        sequence_length=config.data.sequence_length,
        vocab_size=config.model.vocab_size,
    )
    task = Task(plan.init_params, plan.make_constants, plan.optimizer, text)
    reference = partial(
        reference_loss_and_gradients, plan.program.contract, recompute=options.remat != "none"
    )
    num_rounds = options.rounds or max(3, min(9, 80 // num_microbatches))
    with PROGRESS.status(f"m={num_microbatches}: compiling") as status:
        unpipelined = unpipelined_step(reference, task)
        steps = {schedule: pipelined_step(plan.program, task) for schedule, plan in plans.items()}
        status.update(f"m={num_microbatches}: {num_rounds} rounds")
        runs = {schedule: step.run for schedule, step in steps.items()}
        experiment = Experiment("1F1B", num_microbatches, options.remat)
        theirs = {"pytorch": partial(peer.step, experiment)} if peer else {}
        seconds = time_in_turn({"unpipelined": unpipelined.run} | theirs | runs, num_rounds)
    for schedule, step in steps.items():
        time, ratio = spread(seconds[schedule]), ratios(seconds[schedule], seconds["unpipelined"])
        to_pytorch = ratios(seconds[schedule], seconds["pytorch"])._asdict() if peer else None
        yield {
            "ratio_to_pytorch": to_pytorch,
            "schedule": schedule,
            "ranks": NUM_RANKS,
            "microbatches": num_microbatches,
            "remat": options.remat,
            "fuse_backward": configs[schedule].pipeline.fuse_backward,
            "num_ticks": plans[schedule].program.table.num_ticks,
            "compile_seconds": round(step.compile_seconds, 3),
            "temp_bytes_per_device": step.temp_bytes,
            "step_seconds": round(time.median, 4),
            "step_seconds_min": round(time.min, 4),
            "step_seconds_max": round(time.max, 4),
            "tokens_per_second": round(text[..., 1:].size / time.median, 1),
            "unpipelined_seconds": round(spread(seconds["unpipelined"]).median, 4),
            "ratio_to_unpipelined": round(ratio.median, 4),
            "ratio_min": round(ratio.min, 4),
            "ratio_max": round(ratio.max, 4),
            "rounds": num_rounds,
        }


def _config(options: argparse.Namespace, schedule: str, num_microbatches: int) -> "Config":
    """The benchmark's configuration with another schedule; a microbatch keeps its size."""
    from jaxpipe.config import from_yaml

    config = from_yaml(CONFIG.read_text(), name=CONFIG.name)
    fuse = FUSED.get(schedule, False) if options.fuse_backward is None else options.fuse_backward
    batch = config.train.global_batch_size // config.pipeline.num_microbatches
    return replace(
        config,
        pipeline=replace(
            config.pipeline,
            schedule=schedule,
            num_microbatches=num_microbatches,
            fuse_backward=fuse,
            remat=options.remat,
        ),
        train=replace(config.train, global_batch_size=batch * num_microbatches),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--schedules", nargs="+", default=list(FUSED), metavar="NAME", help="default: %(default)s")
    add("--microbatches", nargs="+", type=int, default=[4, 8, 16, 64], metavar="M", help="default: 4 8 16 64")
    add("--rounds", type=int, metavar="N", help="rounds that count (default: 9 for m=4, 3 for m=64)")
    add("--remat", choices=["full", "selective", "none"], default="full", help="default: %(default)s")
    backward = parser.add_mutually_exclusive_group()
    backward.set_defaults(fuse_backward=None)
    backward.add_argument(
        "--fuse", dest="fuse_backward", action="store_true", help="B and W as one action where W follows"
    )
    backward.add_argument("--split", dest="fuse_backward", action="store_false", help="B and W on two ticks")
    add("--no-torch", dest="torch", action="store_false", help="without PyTorch's steps")
    add("--json", type=Path, metavar="FILE", help="write the lines to a file, too")
    add("--picture", type=Path, metavar="FILE", help="draw them as SVG")
    add("--check", action="store_true", help="exit with 1 if a figure is not reached; says which")
    return parser


if __name__ == "__main__":
    sys.exit(main())
