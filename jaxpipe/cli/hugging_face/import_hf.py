"""Start a run from a Llama of Hugging Face, which then goes on like any run that is resumed.

    jaxpipe import-hf Llama-3.2-1B runs/second my.yaml --mesh.dp 2
    python train.py runs/second/config.yaml --checkpoint.resume

After DIR and RUN come a YAML file and flags, as for train.py; the model is that of DIR's config.json. RUN
gets a config.yaml, and checkpoint 0 with the weights in float32. Tensors that are missing, not expected or
of another shape are named before JAX is loaded. A tokenizer.json or tokenizer.model in DIR is the run's
tokenizer, unless data.tokenizer names another one. --dry-run checks all that, and prints the layout and bytes
per device.
"""

import argparse
import shlex
from pathlib import Path

from jaxpipe.cli.faults import RefusedError, refuse_if_any
from jaxpipe.cli.progress_bar import progress_bar
from jaxpipe.errors import StorageError
from jaxpipe.training.storage import REMEDY


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whence, where to, and the run."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("directory", metavar="DIR", help="a folder with config.json and safetensors")
    parser.add_argument("run_directory", metavar="RUN", help="the run's directory, to be made")
    parser.add_argument(
        "configuration",
        metavar="[CONFIG.yaml] [--key value ...]",
        nargs=argparse.REMAINDER,
        help="the run, as for train.py, whose --help names the keys; configs/tiny.yaml by itself",
    )


def run(arguments: argparse.Namespace) -> int | None:
    """Make the run; ``RefusedError`` or ``InputError`` if that cannot be."""
    from jaxpipe.config import parse_for_model
    from jaxpipe.hugging_face.config_json import FILE_NAME, read_config
    from jaxpipe.hugging_face.reader import open_weights
    from jaxpipe.hugging_face.tokenizer_copy import find_tokenizer_file

    if not arguments.directory or "\0" in arguments.directory:
        raise RefusedError([f"{arguments.directory!r} must be the name of a folder; name one"])
    directory = Path(arguments.directory)
    refuse_if_any(_place_faults(directory, arguments.run_directory))
    command, faults = parse_for_model(
        arguments.configuration,
        read_config(directory),
        origin=str(directory / FILE_NAME),
        run_directory=arguments.run_directory,
        tokenizer=find_tokenizer_file(directory),
    )
    refuse_if_any([str(fault) for fault in faults])
    assert command is not None, "there is no fault"
    config = command.config
    weights = open_weights(directory, config.model)
    if command.dry_run:
        from jaxpipe.training.trainer import train  # loads JAX

        return train(config, dry_run=True)
    from jaxpipe.training.weights_import import import_weights  # loads JAX

    total = sum(tensor.num_elements for tensor in weights.tensors.values())
    try:
        with progress_bar("importing", total) as advance:
            tells = import_weights(config, weights, advance=advance)
    except StorageError as error:
        raise StorageError(str(error).replace(REMEDY, "make room there, then import again")) from error
    except OSError as error:
        place = error.filename or config.run.dir
        raise StorageError(
            f"{place} could not be read or written: {error.strerror or error}; mend that, then import again"
        ) from error
    if tells:
        print(
            f"{config.run.dir}: checkpoint 0 with {total} parameters; go on with\n"
            f"  python train.py {shlex.quote(f'{config.run.dir}/config.yaml')} --checkpoint.resume"
        )
    return None


def _place_faults(directory: Path, run_directory: str) -> list[str]:
    """The folder of the model stays as it is, and what a run's directory holds may be removed."""
    if not run_directory or "\0" in run_directory:
        return [f"{run_directory!r} must be the name of a folder; name one"]
    model, run = directory.resolve(), Path(run_directory).resolve()
    if model in (run, *run.parents) or run in model.parents:
        return [
            f"{run_directory} must lie apart from {directory}, neither inside the other; name another one"
        ]
    return []
