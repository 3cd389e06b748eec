"""The command ``jaxpipe``: look at schedules and checkpoints, without a device."""

from jaxpipe.cli.command import main

__all__ = ["main"]
