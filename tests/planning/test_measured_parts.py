"""Measured costs become the parts of a step as the simulator and `explain` take them, too."""

from dataclasses import asdict, replace

import pytest

from jaxpipe.config import faults
from jaxpipe.config.planned_layout import with_layout
from jaxpipe.planning.costs_file import REMATS, ActionSeconds, MeasuredCosts
from jaxpipe.planning.layouts import Layout, Task
from jaxpipe.planning.measured_costs import find_cost_faults, measured_parts
from jaxpipe.planning.schedule_costs import costs_of_layers, message_seconds
from tests.planning.test_search import CONFIG

TASK = Task(CONFIG.model, 32, 4, "bfloat16", 4, 8, evaluation_batch=8)
LAYOUT = Layout(1, 4, 1, False, 0, "1f1b", 1, 4, 1, True, "full")
COSTS = MeasuredCosts(
    platform="cpu",
    device_kind="cpu",
    num_devices=4,
    model=asdict(CONFIG.model),
    compute_dtype="bfloat16",
    sequence_length=32,
    tokens=32,
    tp=1,
    stage_layers=2,
    layer=dict.fromkeys(REMATS, ActionSeconds(1.0, 2.0, 3.0, 5.0, 1.0)),
    stage=dict.fromkeys(REMATS, ActionSeconds(2.0, 4.0, 6.0, 10.0, 2.0)),
    head=0.8,
    embedding=0.4,
    message_bytes=4096,
    transfer=0.1,
    tick=0.01,
    update_per_parameter=1e-9,
    sharing=(1.0, 1.9, 2.8, 3.7),
)


def test_ends_and_messages_cost_what_the_simulator_takes() -> None:
    """All ranks share an end; a tick of emulated devices has both messages."""
    parts = measured_parts(TASK, LAYOUT, COSTS)
    told = measured_parts(TASK, LAYOUT, replace(COSTS, head=0.0, embedding=0.0))  # what ranks tell each other
    ends = (parts.head - told.head, parts.embedding - told.embedding, parts.unembedding - told.unembedding)
    assert ends == pytest.approx((0.2, 0.1, 0.1))
    assert (parts.transfer, parts.tick) == pytest.approx((0.0, message_seconds(COSTS, sync="neighbor")))
    assert measured_parts(TASK, LAYOUT._replace(pp=2, dp=2, num_microbatches=2), COSTS).tick == pytest.approx(
        0.11
    )


def test_ends_of_a_rank_of_several_devices_are_each_ones_share() -> None:
    costs = costs_of_layers(replace(COSTS, tp=2), remat="full", num_layers=1)
    assert (costs.head, costs.embedding) == pytest.approx((0.4, 0.2))


def test_devices_with_their_own_hardware_share_nothing() -> None:
    """What was measured of them is noise around 1, which would grow with the devices of a plan."""
    measured = replace(COSTS, platform="gpu", device_kind="NVIDIA H100", sharing=(1.0, 1.004, 1.01, 0.99))
    parts = measured_parts(TASK, LAYOUT, measured)
    assert parts.has_own_hardware
    assert parts.slowed(64) == 1.0
    assert parts.tick == measured.tick


def test_costs_of_one_rank_say_nothing_of_messages() -> None:
    alone = replace(COSTS, transfer=0.0, num_devices=1, sharing=(1.0,))
    assert any(
        "measure with `jaxpipe profile` and mesh.pp" in fault for fault in find_cost_faults(alone, TASK)
    )
    assert find_cost_faults(alone, replace(TASK, num_devices=1)) == []
    assert find_cost_faults(COSTS, TASK) == []


def test_a_plan_settles_all_that_would_make_it_another_run() -> None:
    """Costs are for auto, R for remat full, and segments are not what was timed."""
    pipeline = replace(CONFIG.pipeline, costs="costs.json", schedule_recompute=True, program="segments")
    planned = with_layout(replace(CONFIG, pipeline=pipeline), LAYOUT._replace(remat="none"))
    assert not faults(planned)
    assert (planned.pipeline.costs, planned.pipeline.program) == (None, "scan")
