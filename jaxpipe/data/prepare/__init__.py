"""From text to a folder of tokens: a plan of units, workers that make a shard of each, and a manifest."""

from jaxpipe.data.prepare.folder import prepare
from jaxpipe.data.prepare.plan import Settings
from jaxpipe.data.prepare.units import Progress

__all__ = ["Progress", "Settings", "prepare"]
