"""One SPMD executor for every schedule, and the contract through which it runs a model."""

from jaxpipe.pipeline.contract import Batch, LossAndGradients, StageContract, Tree
from jaxpipe.pipeline.executor import (
    buffer_shapes,
    make_empty_slots,
    make_loss,
    make_loss_and_gradients,
    make_loss_and_gradients_in_slots,
)
from jaxpipe.pipeline.layout import Layout, to_canonical_layout, to_stage_layout
from jaxpipe.pipeline.program import Program, Settings
from jaxpipe.pipeline.sharding import Sharding
from jaxpipe.pipeline.split_vjp import dense
from jaxpipe.schedules import balanced_layers

__all__ = [
    "Batch",
    "Layout",
    "LossAndGradients",
    "Program",
    "Settings",
    "Sharding",
    "StageContract",
    "Tree",
    "balanced_layers",
    "buffer_shapes",
    "dense",
    "make_empty_slots",
    "make_loss",
    "make_loss_and_gradients",
    "make_loss_and_gradients_in_slots",
    "to_canonical_layout",
    "to_stage_layout",
]
