"""Predicted against measured: the time of a step within 15 %, the bytes of a device within 10 %.

Costs are measured on the devices of this machine, then steps of layouts that differ in everything. A
microbatch on one copy of the pipeline has the size that was measured: costs of other sizes are extrapolated.
"""

import time
from dataclasses import replace
from functools import partial
from statistics import median

import pytest
from measured import measure_costs, step_of

from benchmarks.programs import ReadyStep
from jaxpipe.config import Config, from_yaml
from jaxpipe.config.planned_layout import with_layout
from jaxpipe.planning.costs_file import MeasuredCosts
from jaxpipe.planning.layouts import Layout, Remat, Task
from jaxpipe.planning.measured_costs import measured_parts
from jaxpipe.planning.predict import predict
from jaxpipe.training.planned_memory import planned_memory

pytestmark = pytest.mark.slow

SECONDS, BYTES = 0.15, 0.10
"""How far a prediction may be off: what `jaxpipe plan` promises."""

ATTEMPTS = 3
"""Other work on the machine falls on costs and steps unevenly: the median of so many counts."""

SEQUENCES = 2
"""Of a microbatch on each copy of the pipeline."""

CONFIG = from_yaml(
    """
model:
  vocab_size: 260
  hidden_size: 128
  intermediate_size: 352
  num_hidden_layers: 4
  num_attention_heads: 4
  num_key_value_heads: 2
data: {sequence_length: 64}
mesh: {pp: 4}
pipeline: {num_microbatches: 8}
train: {num_steps: 1, global_batch_size: 16}
optimizer: {learning_rate: 1.0e-3}
"""
)


def layout(
    mesh: tuple[int, int, int],
    schedule: str,
    num_microbatches: int,
    *,
    remat: Remat = "full",
    zero: int = 0,
    chunks: int = 1,
    transfer_ticks: int = 1,
    fuse: bool = True,
) -> Layout:
    dp, pp, tp = mesh
    return Layout(dp, pp, tp, tp > 1, zero, schedule, chunks, num_microbatches, transfer_ticks, fuse, remat)


LAYOUTS = [
    layout((1, 1, 1), "1f1b", 8),
    layout((1, 2, 1), "1f1b", 8, remat="none"),
    layout((1, 4, 1), "1f1b", 8),
    layout((1, 4, 1), "gpipe", 4, remat="selective"),
    layout((1, 4, 1), "zb_h1", 8, fuse=False),
    layout((1, 4, 1), "zb_h2", 16, remat="none", transfer_ticks=2, fuse=False),
    layout((1, 2, 1), "interleaved", 8, chunks=2),
    layout((1, 4, 1), "dualpipe", 8),
    layout((2, 2, 1), "1f1b", 4, zero=1),
    layout((2, 2, 1), "zb_v", 4, chunks=2),
    layout((2, 1, 1), "1f1b", 4, remat="none", zero=2),
    layout((4, 1, 1), "1f1b", 4, remat="selective"),
    layout((1, 2, 2), "1f1b", 8),
]


def configured(layout: Layout) -> Config:
    """The configuration laid out so, with microbatches of the size that is measured."""
    config = with_layout(CONFIG, layout)
    batch = SEQUENCES * layout.dp * layout.num_microbatches
    return replace(config, train=replace(config.train, global_batch_size=batch))


def predicted(layout: Layout, costs: MeasuredCosts) -> float:
    config = configured(layout)
    task = Task(
        model=config.model,
        sequence_length=config.data.sequence_length,
        global_batch=config.train.global_batch_size,
        compute_dtype=config.train.compute_dtype,
        num_devices=layout.dp * layout.pp * layout.tp,
        devices_per_host=8,
        writes_scores=True,
    )
    return predict(task, layout, measured_parts(task, layout, costs)).total


@pytest.fixture(scope="module")
def steps() -> dict[Layout, ReadyStep]:
    return {layout: step_of(configured(layout)) for layout in LAYOUTS}


def run_each(steps: dict[Layout, ReadyStep], seconds: dict[Layout, list[float]]) -> None:
    """One step of each layout: between the rounds of the costs, so that both meet the machine alike."""
    for layout, step in steps.items():
        start = time.perf_counter()
        step.run()
        seconds[layout].append(time.perf_counter() - start)


@pytest.mark.alone
def test_steps_take_as_long_as_predicted(steps: dict[Layout, ReadyStep]) -> None:
    ratios: dict[Layout, list[float]] = {layout: [] for layout in steps}
    for _ in range(ATTEMPTS):
        run_each(steps, {layout: [] for layout in steps})  # the first run does not count
        seconds: dict[Layout, list[float]] = {layout: [] for layout in steps}
        costs = measure_costs(CONFIG, num_devices=4, num_rounds=9, between=partial(run_each, steps, seconds))
        for layout, times in seconds.items():
            ratios[layout].append(predicted(layout, costs) / median(times))
    found = {str(tuple(layout)): round(median(each), 3) for layout, each in ratios.items()}
    assert all(abs(ratio - 1) <= SECONDS for ratio in found.values()), found


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(map(str, layout)))
def test_devices_hold_as_many_bytes_as_predicted(layout: Layout, steps: dict[Layout, ReadyStep]) -> None:
    """What lasts are the step's arguments, to the byte; results overwrite them. The rest is temporary."""
    memory = planned_memory(configured(layout), "cpu")
    assert memory.total == pytest.approx(memory.lasting + steps[layout].compiled.temp_bytes, rel=BYTES)
