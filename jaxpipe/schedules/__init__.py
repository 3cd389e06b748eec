"""Pipeline schedules as data; standard library only."""

from jaxpipe.schedules.actions import Action, Kind, parse_action
from jaxpipe.schedules.activations import held_over_time, peak_held
from jaxpipe.schedules.communication import Communicated, Exchange, with_communication
from jaxpipe.schedules.costs import Costs
from jaxpipe.schedules.csv_text import from_csv, to_csv
from jaxpipe.schedules.formulas import ClosedForms, closed_forms
from jaxpipe.schedules.generators.catalog import (
    GENERATORS,
    SEARCHED,
    Generator,
    build,
    default_schedule,
    find_faults,
)
from jaxpipe.schedules.generators.evaluation import forward_only
from jaxpipe.schedules.grid import time_grid
from jaxpipe.schedules.placement import Placement, balanced_layers, looped, mirrored, v_shaped
from jaxpipe.schedules.recompute import with_recompute
from jaxpipe.schedules.render import as_dict, order_grid
from jaxpipe.schedules.schedule import Schedule
from jaxpipe.schedules.simulate import Cause, Idle, Simulation, simulate
from jaxpipe.schedules.ticks import assign_ticks, fuse_backward, split_backward
from jaxpipe.schedules.validate import validate

__all__ = [
    "GENERATORS",
    "SEARCHED",
    "Action",
    "Cause",
    "ClosedForms",
    "Communicated",
    "Costs",
    "Exchange",
    "Generator",
    "Idle",
    "Kind",
    "Placement",
    "Schedule",
    "Simulation",
    "as_dict",
    "assign_ticks",
    "balanced_layers",
    "build",
    "closed_forms",
    "default_schedule",
    "find_faults",
    "forward_only",
    "from_csv",
    "fuse_backward",
    "held_over_time",
    "looped",
    "mirrored",
    "order_grid",
    "parse_action",
    "peak_held",
    "simulate",
    "split_backward",
    "time_grid",
    "to_csv",
    "v_shaped",
    "validate",
    "with_communication",
    "with_recompute",
]
