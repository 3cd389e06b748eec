"""List the schedules that have a name, with their chunks and options."""

import argparse
import textwrap

from jaxpipe.schedules import Generator
from jaxpipe.schedules.generators.catalog import NAMED

WIDTH = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(arguments: argparse.Namespace) -> None:
    """Print a schedule's name, how many chunks it has unless told, and what it is."""
    names = max(map(len, NAMED))
    print(f"{'schedule':{names}}  chunks")
    for name, generator in NAMED.items():
        head = f"{name:{names}}  {_chunks(generator):6}  "
        lines = textwrap.wrap(generator.summary + _options(generator), WIDTH - len(head))
        print(("\n" + " " * len(head)).join([head + lines[0], *lines[1:]]))


def _chunks(generator: Generator) -> str:
    """The default; with a plus where there may be more."""
    least, most = generator.num_chunks
    return f"{generator.default_chunks}{'' if least == most else '+'}"


def _options(generator: Generator) -> str:
    return f" Options: {', '.join(generator.options)}." if generator.options else ""
