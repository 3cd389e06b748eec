"""The command ``jaxpipe``: look at schedules without a device."""

from jaxpipe.cli.command import main

__all__ = ["main"]
