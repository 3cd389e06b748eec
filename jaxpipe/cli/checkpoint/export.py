"""Write the parameters of a checkpoint to one .npz file, which NumPy alone reads.

Its arrays have the names of the leaves, with layers in model order along their first dimension:
`numpy.load("first.npz")["params.embedding"]`. With --optimizer both moments and the count of steps come too.
What else the checkpoint holds (configuration, position in the data) is in the file as manifest.json.
"""

import argparse
import zipfile
from pathlib import Path

from jaxpipe.checkpoint.manifest import FILE_NAME, Manifest
from jaxpipe.cli.checkpoint.places import HELP, find_whole
from jaxpipe.cli.checkpoint.reading import each_leaf
from jaxpipe.cli.faults import refuse_if_any
from jaxpipe.cli.output import find_output_faults, refused, whole_file
from jaxpipe.errors import CheckpointError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What, and where to."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=HELP)
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the file, such as first.npz")
    parser.add_argument("--optimizer", action="store_true", help="the optimizer's moments and count as well")


def run(arguments: argparse.Namespace) -> None:
    """Write the file, whole or not at all; ``RefusedError`` if that cannot be."""
    faults = find_output_faults(arguments, ())
    if not arguments.output.endswith(".npz"):
        faults.append(f"-o {arguments.output!r} must end with .npz, as NumPy wants it; add that")
    refuse_if_any(faults)
    folder, manifest = find_whole(arguments.checkpoint)
    try:
        with whole_file(Path(arguments.output).resolve()) as path:
            number = _write(path, folder, manifest, with_optimizer=arguments.optimizer)
    except CheckpointError:  # an OSError too, but of the source
        raise
    except OSError as error:
        raise refused(arguments.output, error) from error
    print(f"{arguments.output}: {number} arrays of step {manifest.step}")


def _write(path: Path, folder: Path, manifest: Manifest, *, with_optimizer: bool) -> int:
    """One array after the other, so that no more than one is in memory."""
    wanted = {
        name: array
        for name, array in manifest.arrays.items()
        if with_optimizer or name.partition(".")[0] == "params"
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr(FILE_NAME, (folder / FILE_NAME).read_bytes())
        for name, stored in each_leaf("exporting", wanted):
            import numpy as np

            from jaxpipe.checkpoint.leaves import read_leaf  # loads JAX

            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, read_leaf(folder, name, stored), allow_pickle=False)
    return len(wanted)
