"""Whole runs through ``train`` with steps that are not finite: skipped, counted, resumed, at last ended."""

import jax
import pytest
from run_design import final_hash, metrics_of, resumed, run, saved_steps

from jaxpipe.config import Config
from jaxpipe.training import trainer
from jaxpipe.training.loop import Loop, Start
from jaxpipe.training.trainer import train

SKIP = {"train__non_finite": "skip", "train__num_steps": 6}

DIVERGING = {"optimizer__learning_rate": 1e15, "optimizer__warmup_steps": 0, "optimizer__weight_decay": 0.0}
"""After the first step the parameters are finite, and so is their norm; what a layer makes of them is not."""


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch):
    """Call it with numbers of steps: in these, RoPE's tables hold a NaN."""
    run_loop = trainer.run_loop

    def poison(*steps: int) -> None:
        def poisoned(loop: Loop, *arguments, start: Start) -> int:
            done = start.step

            def train_step(state, batch, constants):
                nonlocal done
                done += 1
                if done in steps:
                    constants = jax.tree.map(lambda table: table * float("nan"), constants)
                return loop.train_step(state, batch, constants)

            train_step.release = loop.train_step.release  # type: ignore[attr-defined]
            return run_loop(loop._replace(train_step=train_step), *arguments, start=start)

        monkeypatch.setattr(trainer, "run_loop", poisoned)

    return poison


def steps_of(config: Config) -> list[dict]:
    return [line for line in metrics_of(config) if "loss" in line]


def test_without_a_bad_step_skipping_changes_no_bit(make_config):
    assert run(make_config("skip", **SKIP)) == run(make_config("stop", train__num_steps=6))


def test_skipped_steps_are_logged_and_the_learning_rate_waits_for_them(make_config, poison, capsys):
    whole = make_config("whole", **SKIP)
    run(whole)
    poison(2, 3)
    config = make_config("poisoned", **SKIP)
    run(config)
    lines = steps_of(config)
    assert [line["skipped"] for line in lines] == [0, 1, 2, 2, 2, 2]
    assert [line["loss"] == line["grad_norm"] == "NaN" for line in lines] == [
        step in (2, 3) for step in range(1, 7)
    ]
    rates, expected = ([line["learning_rate"] for line in steps_of(run)] for run in (config, whole))
    assert rates == [expected[update] for update in (0, 1, 1, 1, 2, 3)]
    printed = capsys.readouterr().out
    assert "step 3: skipped, since it has loss nan and gradient norm nan" in printed
    assert "2 skipped so far" in printed


def test_a_skipped_step_has_its_line_where_others_have_none(make_config, poison):
    poison(2)
    config = make_config("third", run__log_every=3, **SKIP)
    run(config)
    assert [(line["step"], line["skipped"]) for line in steps_of(config)] == [(2, 1), (3, 1), (6, 1)]


@pytest.mark.parametrize("schedule", ["1f1b", "chimera"])
def test_a_resume_keeps_the_counter_and_every_bit(make_config, poison, schedule):
    """The checkpoint is of a skipped step."""
    poison(2, 3, 5)
    whole = make_config("whole", pipeline__schedule=schedule, **SKIP)
    half = make_config("half", pipeline__schedule=schedule, **SKIP | {"train__num_steps": 3})
    run(whole)
    run(half)
    rest = resumed(half, train={"num_steps": 6})
    assert run(rest) == final_hash(whole)
    for key in ("loss", "grad_norm", "learning_rate", "skipped"):
        assert [line[key] for line in steps_of(rest)] == [line[key] for line in steps_of(whole)], key


def test_too_many_in_a_row_end_the_run(make_config, capsys):
    config = make_config("limit", checkpoint__every=2, train__max_skipped_steps=3, **DIVERGING, **SKIP)
    assert train(config) == 1
    assert [line["skipped"] for line in steps_of(config)] == [0, 1, 2, 3]
    said = capsys.readouterr().err
    assert "train.py: step 4: train.max_skipped_steps=3 ends a run that skipped so many in a row" in said
    assert "resume from an earlier checkpoint" in said
    assert saved_steps(config) == [2]


def test_a_run_that_skips_goes_on_after_a_validation_loss_that_is_not_finite(make_config, capsys):
    config = make_config("evaluated", train__eval_every=2, train__eval_batches=1, **DIVERGING, **SKIP)
    run(config)
    assert [line["eval_loss"] for line in metrics_of(config) if "eval_loss" in line][1:] == ["NaN"] * 3
    assert (
        "step 2: validation loss nan nats per token, which is not finite; training" in capsys.readouterr().out
    )


def test_a_run_that_stops_names_the_step_at_once_however_rarely_it_logs(make_config, poison, capsys):
    poison(2)
    config = make_config("stopped", run__log_every=5)
    assert train(config) == 1
    said = capsys.readouterr().err
    assert "step 2: training must stay finite, but it has loss nan" in said
    assert "backward pass: head, final.scale, layers.3." in said
    assert steps_of(config) == []
    assert saved_steps(config) == []


def test_a_run_that_stops_ends_at_a_validation_loss_that_is_not_finite(make_config, capsys):
    config = make_config("evaluated", train__eval_every=1, train__eval_batches=1, **DIVERGING)
    assert train(config) == 1
    assert "step 1: training must stay finite, but it has validation loss nan" in capsys.readouterr().err
