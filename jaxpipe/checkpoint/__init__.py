"""Checkpoints: written all or not at all, read onto any mesh."""

from jaxpipe.checkpoint.checkpoints import Checkpoints, open_checkpoints

__all__ = ["Checkpoints", "open_checkpoints"]
