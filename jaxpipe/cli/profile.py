"""Measure what a configuration costs on the devices at hand, and write it to a file.

    jaxpipe profile configs/bench.yaml -o costs.json --mesh.pp 2
    jaxpipe schedule compare 1f1b zb_h1 --ranks 4 --microbatches 16 --costs costs.json --layers 32

F, B, W, BW and R (a layer's forward pass once more) of one layer and of a stage, for every remat; head,
embedding, messages, empty ticks and the optimizer: schedules, auto and plan take the file. After CONFIG come
flags as for train.py. Where there are fewer accelerators than the mesh wants it measures with those that
there are; CPU devices are emulated. It trains nothing and touches no run.
"""

import argparse
import sys
from collections.abc import Iterator

from jaxpipe.cli.faults import refuse_if_any
from jaxpipe.cli.leaving import leaving_at_once
from jaxpipe.cli.output import find_output_faults, write_or_show
from jaxpipe.cli.profile_table import profile_lines
from jaxpipe.cli.progress_bar import progress_bar
from jaxpipe.cli.sizes import read_number
from jaxpipe.config import Config, parse_without_run
from jaxpipe.config.schedule_choice import choice_of, make_schedule
from jaxpipe.planning.costs_file import to_text

_MOST_ROUNDS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The configuration, how much to measure, and where to write."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_own_options(parser)
    parser.add_argument(
        "configuration",
        metavar="[CONFIG.yaml] [--key value ...]",
        nargs=argparse.REMAINDER,
        help="as for train.py, whose --help names the keys; configs/tiny.yaml by itself",
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, print a table, and write the file; ``RefusedError`` or ``InputError`` if that cannot be."""
    behind = argparse.ArgumentParser(prog="jaxpipe profile", add_help=False, allow_abbrev=False)
    _add_own_options(behind)
    arguments, words = behind.parse_known_args(arguments.configuration, namespace=arguments)
    faults: list[str] = []
    layers = arguments.layers
    if layers is not None:
        layers = read_number(layers, int, option="--layers", faults=faults, fallback=1)
    rounds = read_number(arguments.rounds, int, option="--rounds", faults=faults, fallback=1)
    if not 1 <= rounds <= _MOST_ROUNDS:
        faults.append(f"--rounds {rounds} must be at least 1 and at most {_MOST_ROUNDS}")
    faults += find_output_faults(arguments, ())
    config, found = parse_without_run(words)
    faults += map(str, found)
    if config is not None:
        faults += _layer_faults(layers, config)
    refuse_if_any(faults)
    assert config is not None, "there is no fault"
    _measure(config, layers or _longest_stage(config), num_rounds=rounds, output=arguments.output)


def _add_own_options(parser: argparse.ArgumentParser) -> None:
    """They may stand before and behind CONFIG: defaults count where neither place has them."""
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="costs.json", help="where to write (default costs.json)"
    )
    parser.add_argument(
        "--layers", metavar="N", help="layers of the stage that is measured (default: of the longest stage)"
    )
    parser.add_argument("--rounds", metavar="N", default="5", help="of which it takes medians (default 5)")


def _layer_faults(layers: int | None, config: Config) -> Iterator[str]:
    num_layers = config.model.num_hidden_layers
    if layers is not None and not 1 <= layers <= num_layers:
        yield f"--layers {layers} must be at least 1 and at most model.num_hidden_layers={num_layers}"


def _longest_stage(config: Config) -> int:
    num_stages = make_schedule(choice_of(config)).placement.num_stages
    return max(config.pipeline.layers_per_stage or (-(-config.model.num_hidden_layers // num_stages),))


def _measure(config: Config, stage_layers: int, *, num_rounds: int, output: str) -> None:
    with leaving_at_once("jaxpipe profile"):
        from jaxpipe.profiling.measure import num_parts
        from jaxpipe.profiling.request import profile  # loads JAX

        with progress_bar("measuring", num_parts(stage_layers, num_rounds=num_rounds)) as advance:
            measured = profile(config, stage_layers=stage_layers, num_rounds=num_rounds, advance=advance)
    sys.stdout.write("\n".join(profile_lines(measured, config.mesh, num_rounds=num_rounds)) + "\n")
    write_or_show(to_text(measured.costs), output)
    print(f"\nwritten to {output}")
