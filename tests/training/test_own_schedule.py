"""A schedule that was searched for measured costs belongs to the run: the file may change or vanish."""

import dataclasses
from pathlib import Path

from run_design import make_run

from jaxpipe.config import from_yaml, to_yaml
from jaxpipe.config.schedule_choice import choice_of, make_schedule
from jaxpipe.planning.costs_file import REMATS, ActionSeconds, MeasuredCosts, to_text
from jaxpipe.training.own_schedule import with_own_schedule, write_own_schedule
from jaxpipe.training.run_directory import RunDirectory


def write_costs(path: Path) -> None:
    """Of the small run, with W four times as long as F and B."""
    layer = dict.fromkeys(REMATS, ActionSeconds(1.0, 1.0, 4.0, 5.0, 1.0))
    costs = MeasuredCosts(
        platform="cpu",
        device_kind="cpu",
        num_devices=4,
        model={
            "vocab_size": 257,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        compute_dtype="float32",
        sequence_length=16,
        tokens=32,
        tp=1,
        stage_layers=1,
        layer=layer,
        stage=layer,
        head=0.1,
        embedding=0.0,
        message_bytes=2048,
        transfer=0.1,
        tick=0.0,
        update_per_parameter=1e-9,
        sharing=(1.0,),
    )
    path.write_text(to_text(costs))


def test_what_was_searched_for_measured_costs_stays_with_the_run(tmp_path: Path) -> None:
    text, file = tmp_path / "text.txt", tmp_path / "costs.json"
    text.write_text("a text\n" * 40)
    write_costs(file)
    (tmp_path / "run").mkdir()
    config = make_run(
        tmp_path / "run",
        str(text),
        pipeline__schedule="auto",
        pipeline__costs=str(file),
        pipeline__num_chunks=2,
    )
    schedule = make_schedule(choice_of(config))
    kept = with_own_schedule(config)
    assert not write_own_schedule(kept, RunDirectory(tmp_path / "run"), schedule)
    file.unlink()
    again = from_yaml(to_yaml(kept))
    resumed = make_schedule(choice_of(again))
    assert (resumed.placement, resumed.orders) == (schedule.placement, schedule.orders)
    assert dataclasses.replace(again, pipeline=config.pipeline) == config
