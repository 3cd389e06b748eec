"""Write the parameters of a checkpoint as a Llama of Hugging Face: config.json and safetensors.

Of a run the newest complete checkpoint is taken. In float32, the default, the weights are those of the run
to the bit. The folder is there whole or not at all, and config.json is read by transformers 4 and 5 alike.
The run's tokenizer comes along, unless tokens are bytes.
Nothing of JAX is needed, and no more memory than for what one device held of one array when the checkpoint
was saved.
"""

import argparse
import re
import sys
from pathlib import Path

from jaxpipe.checkpoint.manifest import Manifest
from jaxpipe.checkpoint.stored_parts import stored_parts
from jaxpipe.cli.checkpoint.places import HELP, find_whole
from jaxpipe.cli.checkpoint.saved_config import saved_config
from jaxpipe.cli.faults import RefusedError, refuse_if_any
from jaxpipe.cli.progress_bar import progress_bar
from jaxpipe.data import Tokenizer
from jaxpipe.errors import CheckpointError, InputError
from jaxpipe.hugging_face.tensor_names import leaves_of
from jaxpipe.hugging_face.tokenizer_copy import put_tokenizer
from jaxpipe.hugging_face.writer import DTYPE_NAMES, Unfinished, refuse_taken, whole_model, write_part
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.training.run_tokenizer import saved_tokenizer
from jaxpipe.units import format_bytes

_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) *([KMG]?)B?", re.IGNORECASE)
_LONGEST = 60
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What, where to, and in which form."""
    parser.add_argument("run_directory", metavar="RUN", help=HELP)
    parser.add_argument("directory", metavar="DIR", help="the folder to be made")
    parser.add_argument("--dtype", default="float32", help=f"of the weights: {', '.join(DTYPE_NAMES)}")
    parser.add_argument(
        "--max-shard-size", default="5GB", metavar="SIZE", help="of a file, such as 500MB; 5GB by itself"
    )


def run(arguments: argparse.Namespace) -> None:
    """Write the folder; ``RefusedError`` or ``InputError`` if that cannot be."""
    size = _SIZE.fullmatch(arguments.max_shard_size)
    largest = int(float(size[1]) * _UNITS[size[2].upper()]) if size else 0
    faults = []
    if arguments.dtype not in DTYPE_NAMES:
        faults.append(f"--dtype {arguments.dtype!r} must be one of {', '.join(DTYPE_NAMES)}")
    if largest < 1:
        faults.append(
            f"--max-shard-size {arguments.max_shard_size[:_LONGEST]!r} must be a size, such as 5GB or 500MB"
        )
    if not arguments.directory or "\0" in arguments.directory:
        faults.append(f"{arguments.directory!r} must be the name of a folder; name one")
    refuse_if_any(faults)
    refuse_taken(Path(arguments.directory))
    folder, manifest = find_whole(arguments.run_directory)
    if Path(arguments.directory).resolve().is_relative_to(folder.parent):
        raise RefusedError(
            [f"{arguments.directory} must not lie among the checkpoints in {folder.parent}; name another one"]
        )
    model = saved_config(folder, manifest).model
    tokenizer = _tokenizer(folder, manifest)
    try:
        with whole_model(
            Path(arguments.directory),
            model,
            dtype=DTYPE_NAMES[arguments.dtype],
            max_shard_bytes=largest,
            token_ids={"eos": tokenizer.end_of_document} if tokenizer else {},
        ) as unfinished:
            _fill(unfinished, folder, manifest, model)
            if tokenizer is not None:
                put_tokenizer(unfinished.folder, tokenizer)
    except CheckpointError:  # an OSError too, but of the source
        raise
    except OSError as error:
        raise RefusedError(
            [f"{arguments.directory} cannot be written: {error.strerror or error}; name another folder"]
        ) from error
    written = sum(tensor.num_bytes for tensor in unfinished.tensors.values())
    print(
        f"{arguments.directory}: {len(unfinished.tensors)} tensors of step {manifest.step}, "
        f"{arguments.dtype}, {format_bytes(written)}"
    )


def _tokenizer(folder: Path, manifest: Manifest) -> Tokenizer | None:
    """The run's; where it is not there any more the weights are exported without it, and that is told."""
    try:
        return saved_tokenizer(folder, manifest)
    except InputError as error:
        print(f"jaxpipe export-hf: the tokenizer is left out: {error}", file=sys.stderr)
        return None


def _fill(unfinished: Unfinished, folder: Path, manifest: Manifest, model: LlamaConfig) -> None:
    """Every part of every leaf, as it lies on the disk."""
    leaves = leaves_of(model)
    stored = {leaf: manifest.arrays[f"params.{leaf.name}"] for leaf in leaves}
    with progress_bar("exporting", sum(array.size for array in stored.values())) as advance:
        for leaf, array in stored.items():
            for index, part in stored_parts(folder, f"params.{leaf.name}", array):
                write_part(unfinished, leaf, index, part)
                advance(part.size)
