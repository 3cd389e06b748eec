"""``auto``: a schedule made for given costs and a given memory."""

from jaxpipe.schedules.auto.bounds import Bound
from jaxpipe.schedules.auto.find import Found, find_request_faults, find_schedule
from jaxpipe.schedules.auto.memory import Memory
from jaxpipe.schedules.auto.named import place_recompute
from jaxpipe.schedules.auto.problem import Timing
from jaxpipe.schedules.auto.report import describe

__all__ = [
    "Bound",
    "Found",
    "Memory",
    "Timing",
    "describe",
    "find_request_faults",
    "find_schedule",
    "place_recompute",
]
