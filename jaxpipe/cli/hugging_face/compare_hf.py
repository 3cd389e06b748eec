"""Compare the logits of a Llama of Hugging Face with those of a run, on random tokens.

transformers' own LlamaForCausalLM computes the former, our un-pipelined model the latter, both in float32 on
the CPU. KL is that of the run's distribution from Hugging Face's, in nats, as a mean over the tokens. Ends
with 1 if the largest difference is above the tolerance: 1e-4 unless given, which is for float32 weights as
imported, and some hundred tokens. With thousands give more: transformers rounds RoPE's angles to float32,
which alone can make 2e-3 where weights are large.
"""

import argparse
import math
import os
import re
from pathlib import Path

from jaxpipe.cli.checkpoint.places import HELP, find_whole
from jaxpipe.cli.checkpoint.saved_config import saved_config
from jaxpipe.cli.faults import RefusedError, refuse_if_any
from jaxpipe.cli.terminal import draw_table
from jaxpipe.hugging_face.config_json import read_config
from jaxpipe.hugging_face.reader import open_weights
from jaxpipe.pictures import Table

_LENGTH = 128
_ROUNDED_FROM = 512
"""Positions beyond which the angles of transformers, which are fp32, are off by more than 1e-4."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two, and on what."""
    parser.add_argument("directory", metavar="DIR", help="a folder with config.json and safetensors")
    parser.add_argument("run_directory", metavar="RUN", help=HELP)
    parser.add_argument(
        "--sequence-length", metavar="N", help=f"tokens; {_LENGTH} by itself, or as many as the model takes"
    )
    parser.add_argument("--seed", default="0", help="of the tokens; 0 by itself")
    parser.add_argument("--tolerance", default="1e-4", help="the largest difference that is none")


def run(arguments: argparse.Namespace) -> int:
    """Print the table; 1 if they differ by more than the tolerance."""
    length, seed, tolerance = _numbers(arguments)
    directory = Path(arguments.directory)
    theirs = read_config(directory)
    open_weights(directory, theirs)
    folder, manifest = find_whole(arguments.run_directory)
    ours = saved_config(folder, manifest).model
    longest = min(theirs.max_position_embeddings, ours.max_position_embeddings)
    if length is None:
        length = min(_LENGTH, longest)
    faults = []
    if theirs.vocab_size != ours.vocab_size:
        faults.append(
            f"both must have the same vocabulary, but vocab_size is {theirs.vocab_size} in {directory} and "
            f"{ours.vocab_size} in {arguments.run_directory}"
        )
    if length > longest:
        faults.append(f"--sequence-length {length} must be at most max_position_embeddings={longest}")
    refuse_if_any(faults)
    os.environ["JAX_PLATFORMS"] = "cpu"
    import numpy as np

    from jaxpipe.hugging_face.logits_difference import logits_difference
    from jaxpipe.hugging_face.torch_logits import torch_logits  # loads PyTorch
    from jaxpipe.training.saved_logits import saved_logits  # loads JAX

    tokens = np.random.default_rng(seed).integers(theirs.vocab_size, size=(1, length), dtype=np.int32)
    found = logits_difference(torch_logits(directory, tokens), saved_logits(folder, manifest, ours, tokens))
    print(f"{directory} and step {manifest.step} of {arguments.run_directory}, {length} random tokens")
    rows = (
        ("largest difference of logits", f"{found.largest:.3g}"),
        ("largest logit", f"{found.size:.3g}"),
        ("mean KL, nats", f"{found.kl:.3g}"),
        ("same likeliest token", f"{found.num_agreeing} of {length}"),
    )
    print("\n".join(draw_table(Table(rows[0], rows[1:]))))
    if found.largest <= tolerance:
        return 0
    print(_too_far(found.largest, tolerance, length))
    return 1


def _too_far(largest: float, tolerance: float, length: int) -> str:
    said = f"they differ by more than the tolerance, {largest:.3g} > {tolerance:g}"
    if length > _ROUNDED_FROM:
        said += "; at such lengths transformers' own rounding of RoPE may be 2e-3: see --tolerance"
    return said


def _numbers(arguments: argparse.Namespace) -> tuple[int | None, int, float]:
    """Sequence length if one was given, seed and tolerance; ``RefusedError`` if one is none."""
    faults = []
    for name, least in (("sequence_length", 1), ("seed", 0)):
        text = getattr(arguments, name)
        if text is None:
            continue
        if not re.fullmatch("[0-9]{1,18}", text) or int(text) < least:
            faults.append(
                f"--{name.replace('_', '-')} {text[:60]!r} must be a whole number of at least {least}"
            )
    try:
        tolerance = float(arguments.tolerance)
    except ValueError:
        tolerance = math.nan
    if not tolerance >= 0:
        faults.append(f"--tolerance {arguments.tolerance!r} must be a number of at least 0")
    if faults:
        raise RefusedError(faults)
    length = None if arguments.sequence_length is None else int(arguments.sequence_length)
    return length, int(arguments.seed), tolerance
