"""Pipeline schedules as data; standard library only."""

from jaxpipe.schedules.actions import Action, Kind, parse_action
from jaxpipe.schedules.placement import Placement, looped
from jaxpipe.schedules.schedule import Schedule

__all__ = ["Action", "Kind", "Placement", "Schedule", "looped", "parse_action"]
