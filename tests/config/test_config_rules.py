"""The ranges of single keys, and the rules between them, each seen to fail."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from jaxpipe.config import Config, faults, parse
from jaxpipe.config.keys import assemble, flatten, keys
from jaxpipe.config.ranges import RANGES
from jaxpipe.config.schedule_choice import choice_of, chunks_of, find_choice_faults, make_schedule
from jaxpipe.pipeline import balanced_layers
from jaxpipe.schedules import (
    GENERATORS,
    Costs,
    Kind,
    build,
    peak_held,
    simulate,
    split_backward,
    validate,
    with_recompute,
)
from jaxpipe.schedules.csv_text import to_csv


@pytest.fixture
def right(write_yaml) -> Config:
    return parse([write_yaml(), "--model.rope_scaling.factor", "8", "--dry-run"]).config


def changed(config: Config, changes: Mapping[str, object]) -> Config:
    """The configuration with ``{"train.num_steps": 3}`` and the like."""
    return assemble({**flatten(config), **changes})


def test_a_right_configuration_has_no_faults(right):
    assert faults(right) == []


def test_every_number_has_a_range():
    kinds = (int, float, int | None, float | None)
    numbers = {path for path, key in keys().items() if key.hint in kinds}
    assert set(RANGES) == numbers


def test_every_whole_number_has_a_largest_value():
    whole = [path for path, key in keys().items() if key.hint in (int, int | None)]
    assert [path for path in whole if RANGES[path].high == float("inf")] == []


@pytest.mark.parametrize("path", list(RANGES))
def test_a_number_out_of_its_range_is_one_fault_that_names_it(path, right):
    allowed = RANGES[path]
    outside = [allowed.low - 1] + [allowed.low] * allowed.low_open + [allowed.high] * allowed.high_open
    outside += [allowed.high + 1] if allowed.high < float("inf") else []
    if keys()[path].hint is float:
        outside += [float("inf"), float("-inf"), float("nan")]
    for value in outside:
        found = faults(assemble(flatten(right) | {path: value}))
        assert [fault.split("=")[0] for fault in found] == [path], (value, found)
        assert " must be " in found[0]


MEASURED = {"pipeline.schedule": "auto", "pipeline.costs": "tests/config/costs.json"}
"""What the small configuration costs, with W four times as long as F and B."""

RULES = [
    ({"run.trace_step": 6}, "run.trace_step=6 must be at most train.num_steps=5, .*; use an earlier one"),
    ({"model.num_key_value_heads": 4}, "num_attention_heads=6 must be a multiple of .*=4; use 3 or 6"),
    ({"model.num_attention_heads": 5, "model.num_key_value_heads": 5}, "hidden_size=48 .* use 40 or 50"),
    ({"model.num_attention_heads": 16}, "hidden_size=48 .* use 32 or 64"),
    ({"model.head_dim": 7}, r"head_dim=7 must be even"),
    ({"data.sequence_length": 4096}, "sequence_length=4096 must be at most .*embeddings=2048"),
    ({"data.validation_fraction": 0.0, "train.eval_every": 3}, "leaves no text for train.eval_every=3"),
    ({"train.sample_prompt": "def "}, "sample_prompt .* but train.eval_every=0 makes none; give train.eval"),
    (
        {"train.sample_prompt": "def ", "train.eval_every": 1, "train.sample_tokens": 2048},
        "sample_prompt of 4 tokens and train.sample_tokens=2048 must fit .*max_position_embeddings=2048",
    ),
    ({"mesh.tp": 3}, "num_key_value_heads=2 must be a multiple of mesh.tp=3, .*; mesh.tp may be 1 or 2"),
    ({"mesh.tp": 4}, "num_attention_heads=6 must be a multiple of mesh.tp=4, .*; mesh.tp may be 1 or 2"),
    ({"mesh.tp": 2, "model.intermediate_size": 81}, "size=81 must be a .* mesh.tp=2, .* mesh.tp may be 1$"),
    (
        {"mesh.sequence_parallel": True},
        "sequence_parallel splits the sequence over mesh.tp=1, .*leave it out",
    ),
    (
        {"mesh.sequence_parallel": True, "mesh.tp": 2, "data.sequence_length": 15},
        "sequence_length=15 must be a multiple of mesh.tp=2 with mesh.sequence_parallel; use 14 or 16",
    ),
    (
        {"mesh.zero": 1, "mesh.dp": 5},
        "hidden_size=48 must be a multiple of mesh.dp=5 with mesh.zero=1, .* mesh.zero=0, or mesh.dp=4",
    ),
    (
        {"mesh.dp": 65536},
        "dp=65536 x mesh.pp=4 x mesh.tp=1 = 262144 devices must be at most 65536; use fewer",
    ),
    (
        {"mesh.pp": 64, "pipeline.num_microbatches": 1025},
        "num_ranks x num_chunks x num_microbatches=64 x 1025 = 65600 must be .* 65536; use at most 1024 ",
    ),
    (
        {"model.rope_scaling.rope_type": "linear", "model.rope_scaling.low_freq_factor": 2.0},
        "rope_type=linear does not read model.rope_scaling.low_freq_factor, found 2.0; leave it out",
    ),
    ({"run.seed": 2**32}, "run.seed=4294967296 must be at least 0 and at most 4294967295$"),
    ({"model.vocab_size": 10**17}, "at least 1 and at most 16777216"),
    ({"pipeline.schedule": "zb_h7"}, "schedule 'zb_h7' does not exist.*zb_h2.*gpipe, 1f1b, interleaved"),
    ({"pipeline.schedule": "1f1b", "pipeline.num_chunks": 2, "model.num_hidden_layers": 8}, "num_chunks=2"),
    (
        {"model.num_hidden_layers": 3},
        "num_hidden_layers=3 must be at least .*mesh.pp=4 x 1 chunks of 1f1b = 4",
    ),
    (
        {"pipeline.schedule": "zb_v"},
        "num_hidden_layers=6 must be at least .*mesh.pp=4 x 2 chunks of zb_v = 8",
    ),
    ({"pipeline.num_chunks": 2}, "num_hidden_layers=6 must be at least .*pp=4 x 2 chunks of interleaved = 8"),
    (
        {"pipeline.schedule": "dualpipe"},
        "num_ranks=4 and num_microbatches=3 must .* use num_ranks=2 and num_microbatches=4$",
    ),
    (
        {"pipeline.schedule": "chimera", "mesh.pp": 3},
        "num_ranks=3 must be a multiple of .*; use num_ranks=2 and num_microbatches=3$",
    ),
    ({"pipeline.reverse_backward": True}, "'reverse_backward' does not exist for 1f1b.*; leave it out"),
    ({"pipeline.memory_limit": 3}, "'memory_limit' does not exist for 1f1b, it has none; leave it out"),
    (
        {"pipeline.schedule": "auto", "mesh.pp": 8},
        "layers=6 must be .* mesh.pp=8 x 1 chunks of auto = 8; use",
    ),
    ({"pipeline.costs": "tests/config/costs.json"}, "pipeline.costs is for auto; leave it out"),
    (
        {"pipeline.schedule": "auto", "pipeline.costs": "none.json"},
        "pipeline.costs none.json: cannot be read: No such file",
    ),
    (
        MEASURED | {"data.sequence_length": 8, "model.intermediate_size": 88},
        "must be costs of this run, but was measured with model.intermediate_size=80, not 88, "
        "data.sequence_length=16, not 8, the tokens of a microbatch=32, not 16; measure again",
    ),
    (
        {"pipeline.schedule": "auto", "pipeline.layers_per_stage": (1, 2, 2, 1)},
        "layers_per_stage=.* cannot be met by auto, which chooses the number of stages; name another",
    ),
    ({"pipeline.schedule": "none/such.csv"}, "'none/such.csv' cannot be read: No such file .*; name a CSV"),
    ({"pipeline.layers_per_stage": (1, 2, 3)}, "must have one number a stage, .* = 4 in all, found 3"),
    ({"pipeline.layers_per_stage": (1, 2, 2, 2)}, "sums to 7, but the model has .*layers=6"),
    ({"pipeline.layers_per_stage": (2, 4, 0, 0)}, "must give each stage at least 1 layer"),
    ({"pipeline.layers_per_stage": ()}, "= 4 in all, found 0"),
    ({"train.global_batch_size": 13}, "global_batch_size=13 .*=3 x mesh.dp=2 = 6; use 12 or 18"),
    ({"train.global_batch_size": 10, "mesh.dp": 4, "pipeline.num_microbatches": 1}, "=10 .* use 8 or 12"),
    ({"train.global_batch_size": 2}, "global_batch_size=2 .* = 6; use 6$"),
    ({"data.path": "none/*.txt"}, "data.path: 'none/.*' matches no file"),
    ({"data.path": ()}, "data.path: the list of paths is empty"),
    ({"data.path": ("",)}, "data.path must hold no empty text"),
    ({"data.path": ""}, "data.path must not be empty"),
    ({"run.dir": ""}, "run.dir must not be empty"),
    (
        {"model.rope_scaling.low_freq_factor": 4.0},
        "low_freq_factor=4.0 must be below .*high_freq_factor=4.0",
    ),
    ({"distributed.coordinator": "node0"}, "coordinator=node0 must be host:port with a port from 1 to 65535"),
    ({"distributed.coordinator": "node0:0"}, "coordinator=node0:0 must be host:port"),
    ({"distributed.coordinator": "a:b:12"}, "coordinator=a:b:12 must be host:port"),
    (
        {"distributed.num_processes": 2},
        "num_processes=2 must come with distributed.coordinator and distributed.process_id; give all three",
    ),
    (
        {"distributed.coordinator": "[::1]:80", "distributed.process_id": 1},
        "coordinator=.* and distributed.process_id=1 must come with distributed.num_processes; give",
    ),
    (
        {"distributed.num_processes": 2, "distributed.process_id": 2},
        "process_id=2 must be below distributed.num_processes=2, as it counts from 0; use 0 to 1",
    ),
    (
        {"pipeline.schedule_recompute": True, "pipeline.remat": "selective"},
        "schedule_recompute is for pipeline.remat=full, .*found selective; use full, or leave it out",
    ),
    (
        {"distributed.num_processes": 3},
        "dp=2 x mesh.pp=4 x mesh.tp=1 = 8 devices must be a multiple of distributed.num_processes=3",
    ),
]


@pytest.mark.parametrize(("changes", "said"), RULES)
def test_each_rule_is_seen_to_fail_and_gives_the_values(changes, said, right):
    found = faults(changed(right, changes))
    assert any(re.search(said, fault) for fault in found), found


def test_what_is_to_be_detected_need_not_be_given(right):
    assert faults(changed(right, {"distributed.detect": True})) == []
    assert faults(changed(right, {"distributed.detect": True, "distributed.process_id": 3})) == []


def test_auto_takes_as_many_chunks_as_there_are_layers_for(right):
    for num_layers, num_chunks in ((4, 1), (6, 1), (8, 2)):
        config = changed(right, {"pipeline.schedule": "auto", "model.num_hidden_layers": num_layers})
        assert faults(config) == []
        schedule = make_schedule(choice_of(config))
        assert schedule.placement.num_chunks == num_chunks
        assert (schedule.num_ranks, schedule.num_microbatches) == (4, 3)


def test_auto_keeps_to_its_memory(right):
    changes = {"pipeline.schedule": "auto", "pipeline.num_microbatches": 12, "pipeline.memory_limit": 2}
    schedule = make_schedule(choice_of(changed(right, changes | {"model.num_hidden_layers": 8})))
    assert max(peak_held(schedule, Kind.W)) <= 2 * schedule.placement.num_chunks


def test_auto_is_made_for_the_costs_of_the_file(right):
    """Judged by the simulator at these costs it is quicker than what is made for equal ones."""
    right = changed(right, {"pipeline.num_microbatches": 6, "mesh.dp": 1})
    measured = changed(right, MEASURED)
    assert faults(measured) == []

    def makespan(config: Config) -> float:
        schedule = split_backward(make_schedule(choice_of(config)))
        return simulate(
            schedule, costs=Costs(1.5, 1.5, 6.0, head=0.01), transfer=0.25, sync="neighbor"
        ).makespan

    assert makespan(measured) < makespan(changed(right, {"pipeline.schedule": "auto"}))


def test_costs_of_the_same_heads_fit_whichever_way_they_are_written(right):
    assert faults(changed(right, MEASURED | {"model.head_dim": 8})) == []


@pytest.fixture
def csv_file(tmp_path: Path) -> str:
    """zb_v of two ranks and three microbatches, four stages."""
    file = tmp_path / "mine.csv"
    file.write_text(to_csv(build("zb_v", num_ranks=2, num_microbatches=3)))
    return str(file)


def test_a_schedule_from_a_file_is_right_if_its_sizes_are(right, csv_file):
    changes = {"pipeline.schedule": csv_file, "mesh.pp": 2, "pipeline.layers_per_stage": (1, 2, 2, 1)}
    assert faults(changed(right, changes)) == []


def test_all_that_a_schedule_from_a_file_contradicts_is_told(right, csv_file):
    changes = {"pipeline.schedule": csv_file, "pipeline.num_chunks": 3, "pipeline.reverse_backward": True}
    found = "\n".join(faults(changed(right, changes)))
    assert "mesh.pp=4 must be the 2 of pipeline.schedule=" in found
    assert "pipeline.num_chunks=3 must be the 2 of" in found
    assert "pipeline.reverse_backward is for gpipe by name; leave it out" in found


def test_a_file_with_r_wants_recomputation_to_be_asked_for(right, csv_file):
    Path(csv_file).write_text(to_csv(with_recompute(build("zb_v", num_ranks=2, num_microbatches=3))))
    changes = {"pipeline.schedule": csv_file, "mesh.pp": 2}
    (fault,) = faults(changed(right, changes))
    assert "mine.csv' has R, recomputation as an action of its own; give pipeline.schedule_recompute" in fault
    config = changed(right, changes | {"pipeline.schedule_recompute": True})
    assert faults(config) == []
    assert to_csv(make_schedule(choice_of(config))) == Path(csv_file).read_text().replace("zb_v", "mine")


@pytest.mark.parametrize("name", ["1f1b", "auto", "mine.csv"])
def test_a_schedule_without_r_gets_them_if_asked(right, csv_file, name):
    """In the order of the program as it will run, and every other action where it was."""
    file = {"pipeline.schedule": csv_file, "mesh.pp": 2}
    changes = file if name == "mine.csv" else {"pipeline.schedule": name, "model.num_hidden_layers": 8}
    choices = [
        choice_of(changed(right, changes | {"pipeline.schedule_recompute": asked})) for asked in (False, True)
    ]
    without, having = map(make_schedule, choices)
    assert (without.recomputes, having.recomputes) == (False, True)
    validate(having)
    if name != "auto":
        orders = [[a for a in order if a.kind is not Kind.R] for order in having.orders]
        assert orders == [list(order) for order in split_backward(without).orders]


def test_a_broken_file_shows_its_grid(right, csv_file):
    Path(csv_file).write_text(Path(csv_file).read_text().replace("0F1", "0F0"))
    found = faults(changed(right, {"pipeline.schedule": csv_file, "mesh.pp": 2}))
    assert any(re.search(r"mine.csv.*0F1 .*never|0F0 runs 2 times", fault, re.DOTALL) for fault in found), (
        found
    )


def test_uneven_stages_that_sum_to_the_layers_are_right(right):
    assert faults(changed(right, {"pipeline.layers_per_stage": (1, 2, 2, 1)})) == []


@pytest.mark.parametrize(("num_layers", "num_ranks"), [(10, 4), (126, 16), (58, 8), (61, 16)])
@pytest.mark.parametrize("name", GENERATORS)
def test_any_number_of_layers_is_spread_evenly_whatever_the_schedule(right, name, num_layers, num_ranks):
    """With as many chunks as there are layers for, too."""
    for num_chunks in (None, 3):
        changes = {
            "pipeline.schedule": name,
            "pipeline.num_chunks": num_chunks,
            "pipeline.num_microbatches": 32,
            "train.global_batch_size": 64,
            "mesh.pp": num_ranks,
            "model.num_hidden_layers": num_layers,
        }
        config = changed(right, changes)
        choice = choice_of(config)
        if any("num_chunks" in fault for fault in find_choice_faults(choice)):
            continue  # a schedule that has one number of chunks
        num_stages = num_ranks * chunks_of(choice)
        if num_layers < num_stages:
            assert any("must be at least the number of stages" in fault for fault in faults(config))
            continue
        assert faults(config) == []
        layers = balanced_layers(num_layers, num_stages)
        assert sum(layers) == num_layers
        assert max(layers) - min(layers) <= 1
        placement = make_schedule(choice).placement
        held = [0] * num_ranks
        for stage, count in enumerate(layers):
            held[placement.rank(stage)] += count
        assert max(held) - min(held) <= 1, "the ranks hold unequal numbers of layers"


@pytest.mark.parametrize("dp", [1, 2, 4])
@pytest.mark.parametrize("num_microbatches", [1, 3, 8])
@pytest.mark.parametrize("batch_size", [1, 7, 10, 24, 100])
def test_the_batch_sizes_that_a_fault_names_are_right_and_the_nearest(
    dp, num_microbatches, batch_size, right
):
    changes = {"mesh.dp": dp, "pipeline.num_microbatches": num_microbatches}
    found = faults(changed(right, changes | {"train.global_batch_size": batch_size}))
    fits = [size for size in range(1, 200) if size % (dp * num_microbatches) == 0]
    if batch_size in fits:
        assert found == []
        return
    named = [int(number) for number in re.findall(r"\d+", found[0].split("; use ")[1])]
    below, above = [size for size in fits if size < batch_size], [size for size in fits if size > batch_size]
    assert named == below[-1:] + above[:1]


def test_a_rule_waits_for_the_keys_it_reads(right):
    """num_microbatches=0 would divide by zero in the rule about the batch; only its own fault is told."""
    assert len(faults(changed(right, {"pipeline.num_microbatches": 0, "mesh.pp": 0}))) == 2


def test_checking_does_not_change_the_configuration(right):
    before = dataclasses.asdict(right)
    faults(right)
    assert dataclasses.asdict(right) == before
