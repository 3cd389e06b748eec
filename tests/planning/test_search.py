"""The search finds what trying everything finds, and nothing that a run would refuse."""

from dataclasses import replace

import pytest

from jaxpipe.config import faults, from_yaml
from jaxpipe.config.planned_layout import changed_keys, layout_keys, with_layout
from jaxpipe.planning.collectives import Group, Links, gather_seconds, message_seconds, sum_seconds
from jaxpipe.planning.estimated_costs import estimated_parts
from jaxpipe.planning.hardware import find_hardware
from jaxpipe.planning.layouts import Layout, Task, layouts, meshes
from jaxpipe.planning.memory_estimate import estimated_bytes
from jaxpipe.planning.part_seconds import Line, PartSeconds
from jaxpipe.planning.predict import StepTime, least_seconds, predict
from jaxpipe.planning.reasons import why_slower
from jaxpipe.planning.search import fastest, frontier, make_space
from jaxpipe.planning.tick_rows import all_slots_of, slots_of
from jaxpipe.schedules import Costs, build, fuse_backward, simulate, split_backward

CONFIG = from_yaml(
    """
model:
  vocab_size: 301
  hidden_size: 64
  intermediate_size: 96
  num_hidden_layers: 6
  num_attention_heads: 4
  num_key_value_heads: 2
data: {sequence_length: 32}
pipeline: {num_microbatches: 2}
train: {num_steps: 1, global_batch_size: 4, eval_batch_size: 8, compute_dtype: bfloat16}
optimizer: {learning_rate: 1.0e-3}
"""
)
H100 = find_hardware("NVIDIA H100")
assert H100 is not None


def task_on(num_devices: int) -> Task:
    return Task(CONFIG.model, 32, 4, "bfloat16", num_devices, 8, evaluation_batch=8)


def parts_of(layout: Layout) -> PartSeconds:
    assert H100 is not None
    return estimated_parts(task_on(layout.dp * layout.pp * layout.tp), layout, H100)


@pytest.mark.parametrize(("num_devices", "share"), [(1, 1.0), (2, 0.3), (4, 0.2)])
def test_the_search_finds_the_same_as_trying_all_layouts(num_devices: int, share: float) -> None:
    task = task_on(num_devices)
    every = [
        (
            predict(task, layout, parts_of(layout)).total,
            estimated_bytes(task, layout, all_slots_of(layout)).total,
            layout,
        )
        for layout in layouts(task)
    ]
    sizes = sorted(size for _, size, _ in every)
    limit = sizes[int(share * (len(sizes) - 1))]
    expected = sorted(seconds for seconds, size, _ in every if size <= limit)
    space = make_space(task, parts_of)
    found = [proposal.time.total for proposal in fastest(space, limit)]
    assert found == pytest.approx(expected)
    (best,) = frontier(space, [limit])
    assert best.time.total == pytest.approx(expected[0])


def test_no_layout_takes_less_than_its_bound_by_formula() -> None:
    task = task_on(4)
    for layout in list(layouts(task))[::3]:
        parts = parts_of(layout)
        for shared in (parts, parts._replace(sharing=(1.0, 1.1, 1.7, 2.4))):
            assert least_seconds(task, layout, shared) <= predict(task, layout, shared).total * (1 + 1e-9)


@pytest.mark.parametrize("num_devices", [1, 3, 4])
def test_a_run_refuses_no_layout(num_devices: int) -> None:
    every = list(layouts(task_on(num_devices)))
    assert every
    assert all(layout.dp * layout.pp * layout.tp == num_devices for layout in every)
    for layout in every[::5]:
        assert faults(with_layout(CONFIG, layout)) == [], layout


def test_the_keys_of_a_layout_are_what_it_changes() -> None:
    layout = next(iter(layouts(task_on(4))))
    changed = with_layout(CONFIG, layout)
    assert changed_keys(changed, layout) == {}
    assert set(changed_keys(CONFIG, layout)) <= set(layout_keys(layout))


@pytest.mark.parametrize("transfer_ticks", [1, 2])
@pytest.mark.parametrize("fuses", [False, True])
@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe", "chimera"])
def test_ticks_take_as_long_as_the_simulator_says(name: str, fuses: bool, transfer_ticks: int) -> None:
    """Which takes the ends' costs for all ranks, and the embedding's gradient for as long as its look-up."""
    chunks = 2 if name in ("interleaved", "zb_v") else 1
    layout = Layout(1, 4, 1, False, 0, name, chunks, 8, transfer_ticks, fuses, "full")
    six = replace(task_on(4), model=replace(CONFIG.model, num_hidden_layers=4 * chunks))
    parts = PartSeconds(
        actions={"F": Line(0, 1.0), "B": Line(0, 1.4), "W": Line(0, 0.9), "BW": Line(0, 2.3)},
        **dict.fromkeys(("recomputation", "tensor", "shards", "tick", "before", "reduction", "update"), 0.0),
        head=0.5,
        embedding=0.1,
        unembedding=0.1,
        transfer=0.2,
    )
    schedule = build(name, num_ranks=4, num_microbatches=8)
    program = fuse_backward(schedule) if fuses else split_backward(schedule)
    costs = Costs(1.0, 1.4, 0.9, head=2.0, embedding=0.4)
    expected = simulate(program, costs=costs, transfer=0.2, sync="neighbor", transfer_ticks=transfer_ticks)
    found = predict(six, layout, parts)
    assert found.ticks == pytest.approx(expected.makespan)
    assert found.work == pytest.approx(expected.ideal)


def test_devices_that_share_cores_wait_for_each_other() -> None:
    """Two ranks of two layers, one microbatch, F alone at a time: what one takes alone; two copies, twice."""
    parts = PartSeconds(
        actions={"F": Line(0, 1.0), "B": Line(0, 1.0), "W": Line(0, 1.0), "BW": Line(0, 2.0)},
        **dict.fromkeys(("recomputation", "tensor", "shards", "tick", "before", "reduction", "update"), 0.0),
        **dict.fromkeys(("head", "embedding", "unembedding", "transfer"), 0.0),
        sharing=(1.0, 2.0, 3.0, 4.0),
    )
    layout = Layout(1, 2, 1, False, 0, "1f1b", 1, 1, 1, True, "full")
    assert predict(task_on(2), layout, parts).ticks == pytest.approx(
        2 * 3 * 3.0
    )  # 3 layers, F and BW, in turn
    assert predict(task_on(4), layout._replace(dp=2), parts).ticks == pytest.approx(2 * 2 * 3 * 3.0)


def test_slots_without_ticks_are_those_of_the_lowering() -> None:
    from jaxpipe.lowering import lower

    for name in ("gpipe", "1f1b", "zb_h1", "zb_v", "dualpipe", "interleaved", "chimera"):
        for fuses in (False, True):
            for transfer_ticks in (1, 2):
                chunks = 2 if name in ("interleaved", "zb_v") else 1
                layout = Layout(1, 4, 1, False, 0, name, chunks, 8, transfer_ticks, fuses, "none")
                table = lower(
                    build(name, num_ranks=4, num_microbatches=8),
                    fuse_backward=fuses,
                    transfer_ticks=transfer_ticks,
                )
                assert all_slots_of(layout) == (
                    table.num_inbox_slots,
                    table.num_residual_slots,
                    table.num_input_slots,
                    table.num_weight_slots,
                )
                assert slots_of(layout)[1:] == all_slots_of(layout)[1:]


def test_collectives_take_what_a_ring_takes() -> None:
    """Eight H100 of a host: 450 GB/s; two hosts: 50 GB/s a device, eight devices of each send at once."""
    assert H100 is not None
    links = Links(H100, 1.0, 0.0)
    assert sum_seconds(links, Group(8), 450e9) == pytest.approx(2 * 7 / 8)
    assert gather_seconds(links, Group(16), 400e9) == pytest.approx(15 / 16)
    assert gather_seconds(links, Group(2, 8), 50e9) == pytest.approx(1 / 2)
    assert message_seconds(links, Group(2, 4), 450e9) == pytest.approx(1.0)
    assert message_seconds(links, Group(4, 4), 50e9) == pytest.approx(1.0)
    assert sum_seconds(links, Group(1), 1e9) == 0


def test_meshes_are_all_factors() -> None:
    assert len(set(meshes(64))) == 28  # three exponents that add up to 6
    assert all(dp * pp * tp == 12 for dp, pp, tp in meshes(12))


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (1.0003, "and as fast as the first"),
        (1.1, "but 10.0% slower: layers take 0.09 s more"),
    ],
)
def test_a_reason_never_says_that_a_number_is_itself(times: float, said: str) -> None:
    """All parts grow alike: no share of the step tells the two from each other."""
    best = StepTime(1.0, 0.95, 0.05, 0.0, 0.0, 0.0, once=0.1, reduction=0.05)
    slower = StepTime(*(times * part for part in best))
    assert why_slower(slower, best) == said
    more_bubble = best._replace(ticks=1.1)
    assert why_slower(more_bubble, best) == (
        "but 9.1% slower: the bubble is 12.5% of the step instead of 4.5%"
    )


def test_of_layouts_that_are_as_fast_the_simplest_comes_first() -> None:
    """One microbatch: gpipe and 1f1b are one order."""
    task = replace(task_on(2), global_batch=1, evaluation_batch=None)
    proposals = list(fastest(make_space(task, parts_of), 1e12))
    seen: dict[Layout, str] = {}
    for proposal in proposals:
        seen.setdefault(proposal.layout._replace(schedule=""), proposal.layout.schedule)
    plain = {schedule for layout, schedule in seen.items() if layout.pp == 2 and layout.num_chunks == 1}
    assert plain == {"gpipe"}
