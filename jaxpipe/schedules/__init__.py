"""Pipeline schedules as data; standard library only."""

from jaxpipe.schedules.actions import Action, Kind, parse_action
from jaxpipe.schedules.generators import GENERATORS, build, find_faults, forward_only
from jaxpipe.schedules.placement import Placement, looped
from jaxpipe.schedules.schedule import Schedule
from jaxpipe.schedules.ticks import assign_ticks, fuse_backward, split_backward

__all__ = [
    "GENERATORS",
    "Action",
    "Kind",
    "Placement",
    "Schedule",
    "assign_ticks",
    "build",
    "find_faults",
    "forward_only",
    "fuse_backward",
    "looped",
    "parse_action",
    "split_backward",
]
