"""A schedule becomes a tick table: ``lower``, and ``replay``, which proves the table."""

from jaxpipe.lowering.lower import lower
from jaxpipe.lowering.replay import replay
from jaxpipe.lowering.table import EndColumns, RankColumns, TickTable

__all__ = ["EndColumns", "RankColumns", "TickTable", "lower", "replay"]
