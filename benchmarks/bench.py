"""Every schedule on emulated devices, against the un-pipelined step and PyTorch's 1F1B: ``make bench``.

Three parts, each in a process of its own, since the number of emulated devices changes how fast they are:

    steps      whole steps of all schedules on four ranks, timed in turn, round by round
    one_rank   the executor on one rank, in turn with plain gradient accumulation at its fastest (plain.py)
    sizes      more microbatches, ranks and chunks, compiled only

Each step gives one JSON line on standard output; what does not apply is left out:

    part
    schedule, ranks, chunks, layers   what was run, and of how many layers
    microbatches, remat               how
    fuse_backward, transfer_ticks, program
    num_ticks                         rows of the tick table
    held                              the most stage activations that a rank holds until their W
    compile_seconds                   tracing, lowering and compiling, without a cache; the faster of two
    unpipelined_compile_seconds       the same of the un-pipelined step, and compile_ratio over it
    temp_bytes_per_device             beside parameters, optimizer state and batch
    step_seconds                      a whole step, optimizer included: median, with _min and _max
    tokens_per_second                 of the median step
    rounds                            how many of them
    unpipelined_seconds               the un-pipelined step: median
    ratio_to_unpipelined              median of the rounds' own ratios, with ratio_min and ratio_max
    plain_seconds                     on one rank the same: ratio_to_plain, with _min and _max
    pytorch_seconds                   for PyTorch's 1F1B: ratio_to_pytorch, with _min and _max
    1f1b_seconds                      for our own 1f1b: ratio_to_1f1b, with _min and _max

PyTorch runs four processes of one thread each (torch_worker.py); its lines are schedules of their own.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import cases as grid
from benchmarks.criteria import misses
from benchmarks.own_process import PartError, in_own_process
from benchmarks.picture import draw
from benchmarks.torch_peer import SCHEDULES, Experiment, is_installed, model_of, open_peer
from jaxpipe.schedules import GENERATORS

Row = dict[str, Any]

PROGRESS = Console(stderr=True, highlight=False)

NUM_DEVICES = {"steps": grid.NUM_RANKS, "one_rank": 1, "sizes": max(grid.VARIED_P)}
"""The parts, and how many devices each of them has emulated."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if ``--check`` finds a figure that is not reached."""
    options = _parser().parse_args(argv)
    if options.torch and not is_installed() and "steps" in options.parts:
        what = "PyTorch is not installed, so its steps are left out; `make setup-dev` installs it"
        PROGRESS.print(what, soft_wrap=True)
        options.torch = False
    rows = []
    with ExitStack() as stack:
        files = [stack.enter_context(options.json.open("w"))] if options.json else []
        try:
            for row in measure(options):
                for file in (sys.stdout, *files):
                    print(json.dumps(row), file=file, flush=True)
                rows.append(row)
        except PartError as error:
            PROGRESS.print(f"bench: {error}", soft_wrap=True)
            return 1
    if options.picture:
        options.picture.write_text(draw(rows))
    missed = list(misses(rows))
    for sentence in missed:
        PROGRESS.print(f"missed: {sentence}", soft_wrap=True)
    return 1 if options.check and missed else 0


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """The rows of all parts, as they come."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    rows_of = {"steps": steps, "one_rank": one_rank, "sizes": sizes}
    for part, num_devices in NUM_DEVICES.items():
        if part in options.parts:
            for row in in_own_process(rows_of[part], options, num_devices=num_devices):
                yield {"part": part} | row


def steps(options: argparse.Namespace) -> Iterator[Row]:
    """All schedules, for each number of microbatches and each remat."""
    from benchmarks.sizes import warm_up
    from benchmarks.steps import time_cases

    warm_up()
    with ExitStack() as stack:
        peer = None
        if options.torch:
            config = grid.config_of(grid.make_case("1f1b", 1, "full"))
            model = model_of(
                config.model,
                sequence_length=config.data.sequence_length,
                batch=config.train.global_batch_size,
            )
            peer = stack.enter_context(open_peer(model, num_ranks=grid.NUM_RANKS))
        for num_microbatches in options.microbatches:
            for remat in options.remat:
                cases = _possible(
                    grid.steps_in_turn(
                        options.schedules, num_microbatches, remat, fuse_backward=options.fuse_backward
                    )
                )
                # what PyTorch keeps in its selective checkpointing is something else
                names = options.torch_schedules if remat != "selective" else ()
                if cases:
                    yield from time_cases(
                        cases,
                        options.rounds or max(5, min(7, 64 // num_microbatches)),
                        peer=peer,
                        experiments=[Experiment(name, num_microbatches, remat) for name in names],
                    )


def one_rank(options: argparse.Namespace) -> Iterator[Row]:
    """1f1b without a pipeline."""
    from benchmarks.sizes import warm_up
    from benchmarks.steps import time_cases

    warm_up()
    for remat in options.remat:
        case = grid.make_case("1f1b", 8, remat, fuse_backward=options.fuse_backward)._replace(num_ranks=1)
        yield from time_cases([case], options.rounds or 7)


def sizes(options: argparse.Namespace) -> Iterator[Row]:
    """What is only compiled."""
    from benchmarks.sizes import compile_cases, warm_up

    warm_up()
    cases = _possible(
        grid.only_compiled(
            options.schedules,
            remats=options.remat,
            timed=options.microbatches if "steps" in options.parts else (),
            selection=options.schedules if options.all_sizes else grid.SELECTION,
            fuse_backward=options.fuse_backward,
        )
    )
    with PROGRESS.status("compiling") as status:
        for number, row in enumerate(compile_cases(cases), 1):
            status.update(f"compiling {number} of {len(cases)}")
            yield row


def _possible(cases: Iterator[grid.Case]) -> list[grid.Case]:
    """Those without faults; of the others it is said why not."""
    possible = []
    for case in cases:
        if faults := grid.find_case_faults(case):
            sizes = f"p={case.num_ranks}, m={case.num_microbatches}, v={case.num_chunks}"
            PROGRESS.print(f"left out: {case.schedule}, {sizes}: {'; '.join(faults)}", soft_wrap=True)
        else:
            possible.append(case)
    return possible


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__.split("\n")[0])
    add = parser.add_argument
    names, parts, remats = list(GENERATORS), list(NUM_DEVICES), ["full", "selective", "none"]
    add(
        "--parts",
        nargs="+",
        choices=parts,
        default=parts,
        metavar="PART",
        help="of %(choices)s (default: all)",
    )
    add("--schedules", nargs="+", choices=names, default=names, metavar="NAME", help="default: all but auto")
    add(
        "--microbatches",
        nargs="+",
        type=_positive,
        default=[8, 16],
        metavar="M",
        help="of timed steps (default: 8 16)",
    )
    add("--remat", nargs="+", choices=remats, default=["full", "none"], help="default: full none")
    add("--rounds", type=_positive, metavar="N", help="rounds that count (default: 7 for m=8, 5 for m=16)")
    add(
        "--split",
        dest="fuse_backward",
        action="store_false",
        help="B and W on two ticks, never as one action",
    )
    add("--all-sizes", action="store_true", help="vary the ranks of all schedules, not of a selection")
    add("--no-torch", dest="torch", action="store_false", help="without PyTorch")
    add(
        "--torch-schedules",
        nargs="+",
        choices=SCHEDULES,
        default=[SCHEDULES[0]],
        metavar="NAME",
        help="of %(choices)s (default: 1F1B)",
    )
    add("--json", type=Path, metavar="FILE", help="write the lines to a file, too")
    add("--picture", type=Path, metavar="FILE", help="draw them as SVG")
    add("--check", action="store_true", help="exit with 1 if a figure is not reached; says which")
    return parser


def _positive(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
