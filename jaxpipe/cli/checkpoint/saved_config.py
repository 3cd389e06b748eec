"""The configuration of the run that a checkpoint is of."""

from pathlib import Path

from jaxpipe.checkpoint.manifest import Manifest
from jaxpipe.config import Config, from_saved
from jaxpipe.errors import InputError


def saved_config(folder: Path, manifest: Manifest) -> Config:
    """``InputError`` if the checkpoint in ``folder`` has none that this jaxpipe knows."""
    if "config" not in manifest.info:
        raise InputError(f"{folder} must be of a run, but holds no configuration; name a run's checkpoint")
    return from_saved(manifest.info["config"], name=f"the configuration in {folder}")
