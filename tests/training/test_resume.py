"""Runs that go on from a checkpoint: to the bit, on any mesh, and never from a damaged one."""

import dataclasses
import gc
import os
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from run_design import (
    arrays_of,
    copy_of,
    final_hash,
    folder_of,
    make_run,
    manifest_of,
    metrics_of,
    resumed,
    run,
    saved_steps,
    timeless,
)

from jaxpipe.checkpoint.checkpoints import open_checkpoints
from jaxpipe.checkpoint.template import named_leaves
from jaxpipe.config import from_yaml
from jaxpipe.errors import InputError
from jaxpipe.schedules import build, to_csv
from jaxpipe.schedules.generators.catalog import NAMED, SEARCHED
from jaxpipe.training import loop, preparation, trainer
from jaxpipe.training.devices import make_mesh
from jaxpipe.training.plan import make_plan
from jaxpipe.training.state import canonical_template, from_canonical, make_to_canonical
from jaxpipe.training.step_log import StepLog
from jaxpipe.training.trainer import train

NAMES = [*NAMED, *SEARCHED]
RESUMED_TWICE = ("1f1b", "zb_v", "chimera")


@pytest.mark.slow
@pytest.mark.parametrize("schedule", NAMES)
def test_a_run_that_is_resumed_is_the_undisturbed_one_in_every_leaf_and_line(make_config, schedule):
    """Six steps, and 3 + 3 or 3 + 1 + 2, with samples in shuffled order and a learning rate that changes."""
    changes = {"pipeline__schedule": schedule, "mesh__pp": 2}
    whole = make_config("whole", train__num_steps=6, **changes)
    parts = make_config("parts", train__num_steps=3, **changes)
    expected = run(whole)
    run(parts)
    if schedule in RESUMED_TWICE:
        run(resumed(parts, train={"num_steps": 4}))
    assert run(resumed(parts, train={"num_steps": 6})) == expected
    assert timeless(parts) == timeless(whole)
    assert len({line["learning_rate"] for line in metrics_of(parts) if "loss" in line}) == 6
    found, wanted = arrays_of(parts, 6), arrays_of(whole, 6)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name].view(np.uint32), array.view(np.uint32), err_msg=name)
    assert manifest_of(parts, 6).arrays == manifest_of(whole, 6).arrays
    assert manifest_of(parts, 6).info["data"] == manifest_of(whole, 6).info["data"]


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory, text):
    """Three steps at (pp, tp, dp) = (4, 1, 2), and a fourth in a copy of the run."""
    config = make_run(
        tmp_path_factory.mktemp("runs") / "half",
        text,
        train__num_steps=3,
        mesh__dp=2,
        mesh__zero=1,
        model__num_hidden_layers=8,
        model__num_key_value_heads=4,
    )
    run(config)
    whole = copy_of(config, Path(config.run.dir).with_name("whole"))
    run(resumed(whole, train={"num_steps": 4}))
    return config, metrics_of(whole)[-2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "schedule"),
    [
        ({"pp": 1, "tp": 1, "dp": 1}, "gpipe"),
        ({"pp": 2, "tp": 2, "dp": 2, "zero": 1}, "zb_v"),
        ({"pp": 2, "tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True}, "chimera"),
        ({"pp": 8, "tp": 1, "dp": 1}, "zb_h2"),
        ({"pp": 4, "tp": 1, "dp": 2, "zero": 2}, "interleaved"),
    ],
    ids=lambda value: " ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value,
)
def test_a_checkpoint_is_read_on_any_mesh_by_any_schedule(four_ranks, tmp_path, mesh, schedule):
    saved, expected = four_ranks
    copy = copy_of(saved, tmp_path / "copy")
    other = resumed(
        copy, train={"num_steps": 4}, mesh=mesh, pipeline={"schedule": schedule, "num_chunks": None}
    )
    run(other)
    found = metrics_of(other)[-2]
    assert found["step"] == expected["step"] == 4
    # 1e-6: another mesh adds up the same numbers in another order
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    assert found["learning_rate"] == expected["learning_rate"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "schedule"),
    [
        ((1, 1, 1, 0), "1f1b"),
        ((8, 1, 1, 0), "zb_h1"),
        ((2, 2, 2, 3), "zb_v"),
        ((2, 2, 2, 2), "interleaved"),
        ((4, 2, 1, 0), "chimera"),
    ],
    ids=str,
)
def test_parameters_and_moments_are_the_same_arrays_on_another_mesh(four_ranks, tmp_path, mesh, schedule):
    """Read, laid out for the ranks of the other mesh, and brought back: equal to the bit."""
    pp, tp, dp, zero = mesh
    saved, _ = four_ranks
    other = resumed(saved, mesh={"pp": pp, "tp": tp, "dp": dp, "zero": zero}, pipeline={"schedule": schedule})
    devices = make_mesh(dp=dp, pp=pp, tp=tp)
    plan = make_plan(other, devices)
    layout = plan.program.layout
    like = canonical_template(plan.init_params, plan.optimizer, layout=layout, mesh=devices)
    with open_checkpoints(folder_of(saved, 3).parent, keep=1) as checkpoints:
        state = from_canonical(checkpoints.restore(3, like), layout=layout, mesh=devices)
    back = named_leaves(make_to_canonical(state, layout=layout, mesh=devices)(state))
    wanted = arrays_of(saved, 3)
    assert back.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(np.asarray(back[name]), array, err_msg=name)
    assert all(np.any(array) for name, array in wanted.items() if name.startswith(("mu", "nu")))


def flip_a_bit(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    path = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()


DAMAGES = {
    "a flipped bit": (4, flip_a_bit),
    "an empty folder": (4, empty),
    "an empty folder of a later step": (8, empty),
    "no manifest": (4, lambda folder: (folder / "manifest.json").unlink()),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_run_falls_back_to_the_newest_whole_checkpoint_with_one_warning(make_config, capsys, kind):
    whole, parts = (
        make_config(name, train__num_steps=steps, checkpoint__every=2) for name, steps in [("a", 6), ("b", 4)]
    )
    expected = run(whole)
    run(parts)
    step, damage = DAMAGES[kind]
    damage(folder_of(parts, step))
    capsys.readouterr()
    assert run(resumed(parts, train={"num_steps": 6})) == expected
    captured = capsys.readouterr()
    from_step = 2 if step == 4 else 4
    assert captured.err.count("warning") == 1
    assert f"checkpoint {step} (" in captured.err
    assert f"resumes from step {from_step} instead" in captured.err
    assert f"after step {from_step};" in captured.out
    assert folder_of(parts, step).with_name(f"{step}.damaged").is_dir()
    assert timeless(parts) == timeless(whole)


def test_a_run_of_which_no_checkpoint_is_whole_is_refused_and_nothing_is_touched(make_config):
    config = make_config("damaged", train__num_steps=4, checkpoint__every=2)
    run(config)
    flip_a_bit(folder_of(config, 2))
    flip_a_bit(folder_of(config, 4))
    with pytest.raises(
        InputError, match=r"none of the checkpoints .* is whole: checkpoint 4 \(.*checkpoint 2"
    ):
        train(resumed(config, train={"num_steps": 6}))
    assert saved_steps(config) == [2, 4]
    assert final_hash(config)


def test_a_resumed_run_holds_its_state_once(make_config):
    """No copy of what was read stays: the first step takes over the state, and so does each later one."""
    config = make_config("memory", train__num_steps=2)
    run(config)
    gc.collect()
    held = {}
    before = sum(array.nbytes for array in jax.live_arrays())

    class Watching(StepLog):
        def add(self, step, metrics):
            super().add(step, metrics)
            held[step] = sum(array.nbytes for array in jax.live_arrays()) - before - slots[0]

    slots = []

    def compile_training(config, prepared, state):
        step, seconds = preparation.compile_training(config, prepared, state)
        slots.append(step.slot_bytes * prepared.mesh.size)
        return step, seconds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "StepLog", Watching)
        patch.setattr(trainer, "compile_training", compile_training)
        run(resumed(config, train={"num_steps": 5}))
    state = sum(array.nbytes for array in arrays_of(config, 5).values())
    assert held.keys() == {3, 4, 5}
    assert held[3] == held[5]
    assert held[3] < 1.5 * state


def test_the_best_checkpoint_by_validation_loss_stays(make_config):
    """A learning rate far too high from the fourth step on: the loss rises after it has fallen."""
    config = make_config(
        "best",
        train__num_steps=9,
        train__eval_every=1,
        checkpoint__every=5,
        checkpoint__keep=1,
        checkpoint__keep_best=True,
        optimizer__learning_rate=0.5,
        optimizer__warmup_steps=12,
    )
    run(config)
    losses = {line["step"]: line["eval_loss"] for line in metrics_of(config) if "eval_loss" in line}
    best = min((step for step in losses if step), key=lambda step: losses[step])
    assert 1 < best < 8
    assert saved_steps(config) == [best, 9]
    assert manifest_of(config, best).validation_loss == losses[best]
    assert manifest_of(config, 9).info["evaluation"] == {"is_evaluated": True, "best_loss": losses[best]}


def test_a_resumed_run_knows_which_one_was_the_best(make_config):
    changes = {
        "train__eval_every": 1,
        "checkpoint__keep": 1,
        "checkpoint__keep_best": True,
        "optimizer__learning_rate": 0.5,
        "optimizer__warmup_steps": 12,
    }
    whole = make_config("whole", train__num_steps=9, **changes)
    parts = make_config("parts", train__num_steps=6, **changes)
    run(whole)
    run(parts)
    run(resumed(parts, train={"num_steps": 9}))
    assert saved_steps(parts) == saved_steps(whole)
    assert timeless(parts) == timeless(whole)


@pytest.mark.parametrize("step", [0, 4, 6])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_evaluation_that_a_signal_cut_short_is_made_when_the_run_resumes(
    make_config, monkeypatch, step, number
):
    """Also that of the last step, and that of the best one: which checkpoint stays is the same."""
    changes = {
        "train__eval_every": 2,
        "train__num_steps": 6,
        "checkpoint__keep": 1,
        "checkpoint__keep_best": True,
        "optimizer__learning_rate": 0.5,
        "optimizer__warmup_steps": 12,
    }
    whole, cut = make_config("whole", **changes), make_config("cut", **changes)
    expected = run(whole)
    assert saved_steps(whole) == [4, 6]

    def evaluate(*arguments, **others):
        evaluated.append(len(evaluated) * 2)
        if evaluated[-1] == step:
            os.kill(os.getpid(), number)
        return original(*arguments, **others)

    evaluated: list[int] = []
    original = loop.evaluate
    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate", evaluate)
        assert train(cut) == (143 if number == signal.SIGTERM else 0)
    assert saved_steps(cut)[-1] == step
    assert run(resumed(cut)) == expected
    assert timeless(cut) == timeless(whole)
    assert saved_steps(cut) == saved_steps(whole)
    for kept in saved_steps(whole):
        assert manifest_of(cut, kept).validation_loss == manifest_of(whole, kept).validation_loss
        assert manifest_of(cut, kept).info["evaluation"] == manifest_of(whole, kept).info["evaluation"]


def test_a_run_whose_checkpoints_are_lost_does_not_start_from_its_beginning_without_a_word(
    make_config, capsys
):
    ended, begun = make_config("ended", train__num_steps=2), make_config("begun", train__num_steps=2)
    run(ended)
    run(begun)
    checkpoints = folder_of(ended, 2).parent
    shutil.rmtree(checkpoints)
    with pytest.raises(
        InputError, match="no checkpoint to resume from, but there are metrics of a run that has"
    ):
        train(resumed(ended, train={"num_steps": 4}))
    checkpoints.mkdir(exist_ok=True)
    (checkpoints / "2.damaged").mkdir()
    with pytest.raises(
        InputError, match="1 damaged ones that were set aside and metrics of a run that has saved"
    ):
        train(resumed(ended, train={"num_steps": 4}))
    assert final_hash(ended)
    shutil.rmtree(folder_of(begun, 2))
    metrics = Path(begun.run.dir, "metrics.jsonl")
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    capsys.readouterr()
    run(resumed(begun))
    assert (
        "has no checkpoint yet; the run starts from its beginning, and the 2 lines" in capsys.readouterr().err
    )


def test_checkpoints_that_vanish_from_a_run_that_was_killed_are_missed(make_config, capsys):
    """Metrics of a step after two saves were due prove that there was one; those of earlier steps do not."""
    config = make_config("killed", train__num_steps=7, checkpoint__every=3)
    run(config)
    shutil.rmtree(folder_of(config, 6).parent)
    metrics = Path(config.run.dir, "metrics.jsonl")
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:7]))
    with pytest.raises(InputError, match="metrics of a run that has saved some"):
        train(resumed(config))
    metrics.write_text("".join(lines[:6]))
    capsys.readouterr()
    run(resumed(config))
    assert "has no checkpoint yet" in capsys.readouterr().err


def test_the_initial_weights_are_never_the_best(make_config, monkeypatch):
    """Their evaluation is cut short; each later one is worse than theirs."""
    changes = {
        "train__eval_every": 2,
        "train__num_steps": 4,
        "checkpoint__keep": 1,
        "checkpoint__keep_best": True,
        "optimizer__learning_rate": 30.0,
        "optimizer__warmup_steps": 0,
    }
    whole, cut = make_config("whole", **changes), make_config("cut", **changes)
    run(whole)
    original = loop.evaluate

    def evaluate(*arguments, **others):
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments, **others)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate", evaluate)
        assert train(cut) == 143
    run(resumed(cut))
    losses = [line["eval_loss"] for line in metrics_of(cut) if "eval_loss" in line]
    assert losses[0] < min(losses[1:])
    assert saved_steps(cut) == saved_steps(whole)
    assert 0 not in saved_steps(cut)


@pytest.mark.parametrize("size", [4, 24])
def test_evaluation_with_another_batch_size_changes_no_bit_and_hardly_the_loss(make_config, size):
    without = make_config("without")
    same = make_config("same", train__eval_every=1, train__eval_batches=3)
    other = make_config(
        "other", train__eval_every=1, train__eval_batches=24 // size, train__eval_batch_size=size
    )
    assert run(without) == run(same) == run(other)
    losses = [
        [line["eval_loss"] for line in metrics_of(config) if "eval_loss" in line] for config in (same, other)
    ]
    assert len(losses[0]) == 6
    # 1e-6: the same samples, added up in other groups
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


@pytest.mark.slow
def test_a_run_keeps_the_schedule_that_came_from_a_file(make_config, tmp_path, capsys):
    """The file vanishes; the run resumes from its own copy, to the bit. Another file is told."""
    mine = tmp_path / "mine.csv"
    mine.write_text(to_csv(build("zb_h2", num_ranks=4, num_microbatches=4)))
    named = make_config("named", pipeline__schedule="zb_h2", train__num_steps=4)
    half = make_config("half", pipeline__schedule=str(mine), train__num_steps=2)
    run(named)
    run(half)
    mine.unlink()
    kept = from_yaml((tmp_path / "half" / "config.yaml").read_text())
    assert kept.pipeline.schedule == str(tmp_path / "half" / "schedule.csv")
    longer = dataclasses.replace(
        kept,
        train=dataclasses.replace(kept.train, num_steps=4),
        checkpoint=dataclasses.replace(kept.checkpoint, resume=True),
    )
    run(longer)
    assert final_hash(longer) == final_hash(named)
    capsys.readouterr()
    mine.write_text(to_csv(build("1f1b", num_ranks=4, num_microbatches=4)))
    other = dataclasses.replace(longer, pipeline=dataclasses.replace(longer.pipeline, schedule=str(mine)))
    run(other)
    assert "another one than this run had" in " ".join(capsys.readouterr().out.split())


def test_resuming_a_finished_run_does_nothing_and_says_so_with_the_same_hash(make_config):
    config = make_config("done")
    before = run(config)
    assert run(resumed(config)) == before
    assert len(metrics_of(config)) == 6


def test_a_run_without_checkpoint_resumes_from_the_start(make_config):
    whole, lost = make_config("whole", train__eval_every=5), make_config("lost", train__eval_every=5)
    expected = run(whole)
    Path(lost.run.dir).mkdir()
    Path(lost.run.dir, "config.yaml").write_text("killed before its first checkpoint")
    Path(lost.run.dir, "metrics.jsonl").write_text(
        '{"step": 0, "eval_loss": 5.5}\n{"step": 1, "loss": 5.5}\n'
    )
    assert run(resumed(lost)) == expected
    assert [line["step"] for line in metrics_of(lost)] == [line["step"] for line in metrics_of(whole)]


@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta", "hidden_size"])
def test_a_resume_with_another_model_names_what_differs(make_config, key):
    config = make_config("model", train__num_steps=1)
    run(config)
    values = {"rms_norm_eps": 1e-3, "rope_theta": 5e5, "hidden_size": 32}
    with pytest.raises(InputError, match=rf"model.{key}={values[key]}"):
        train(resumed(config, train={"num_steps": 2}, model={key: values[key]}))
    assert final_hash(config)  # nothing was written


def test_a_resume_with_another_text_of_the_same_length_is_refused(make_config, text):
    config = make_config("text", train__num_steps=1)
    run(config)
    file = Path(text, "5.txt")
    original = file.read_text()
    try:
        file.write_text(original.translate(str.maketrans("1", "2")))
        with pytest.raises(InputError, match=r"text was \w+ and is"):
            train(resumed(config, train={"num_steps": 2}))
    finally:
        file.write_text(original)
    with pytest.raises(InputError, match=r"data.sequence_length was 16 and is 32"):
        train(resumed(config, data={"sequence_length": 32}))


def test_a_resume_with_fewer_steps_than_are_done_is_refused(make_config):
    config = make_config("fewer", train__num_steps=3)
    run(config)
    with pytest.raises(InputError, match=r"train.num_steps=2 must be at least 3"):
        train(resumed(config, train={"num_steps": 2}))


def test_a_resume_tells_what_it_changes_and_leaves_a_config_that_can_be_used_anew(make_config, capsys):
    config = make_config("changes", train__num_steps=1)
    run(config)
    run(resumed(config, train={"num_steps": 2}))
    assert "train.num_steps 1 -> 2" in capsys.readouterr().out
    written = yaml.safe_load(Path(config.run.dir, "config.yaml").read_text())
    assert written["checkpoint"]["resume"] is False
    assert written["train"]["num_steps"] == 2
