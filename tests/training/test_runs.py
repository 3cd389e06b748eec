"""Whole runs through ``train``: the numerics contract as a user meets it, in this process."""

from pathlib import Path

import pytest
from run_design import metrics_of, resumed, run, saved_steps

from jaxpipe.errors import InputError
from jaxpipe.training.trainer import train


def test_schedules_on_one_mesh_end_with_the_same_parameters_to_the_bit(make_config):
    forms = [("gpipe", True), ("1f1b", True), ("1f1b", False), ("zb_h1", False)]
    hashes = {
        run(make_config(f"{name}-{fuse}", pipeline__schedule=name, pipeline__fuse_backward=fuse))
        for name, fuse in forms
    }
    assert len(hashes) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"mesh__pp": 1},
        {"mesh__pp": 2, "mesh__dp": 2, "mesh__zero": 2},
        {"mesh__pp": 2, "mesh__tp": 2},
        {"pipeline__num_microbatches": 1},
        {"pipeline__num_microbatches": 8},
        {"mesh__pp": 2, "pipeline__layers_per_stage": [1, 3], "pipeline__remat": "none"},
        {"pipeline__transfer_ticks": 2, "pipeline__remat": "selective"},
    ],
    ids=str,
)
def test_the_first_steps_do_not_depend_on_mesh_microbatches_or_remat(make_config, changes):
    base, other = make_config("base", train__num_steps=2), make_config("other", train__num_steps=2, **changes)
    run(base)
    run(other)
    for expected, found in zip(metrics_of(base)[:2], metrics_of(other)[:2], strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        # the norm must not grow with the microbatches, nor be that of one stage
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
        assert found["tokens"] == expected["tokens"]


def test_evaluation_leaves_training_unchanged_to_the_bit(make_config):
    without, often = make_config("without"), make_config("often", train__eval_every=1, train__eval_batches=3)
    assert run(without) == run(often)
    lines = metrics_of(often)
    assert [line["step"] for line in lines if "eval_loss" in line] == [0, 1, 2, 3, 4, 5]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5]
    losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
    assert losses[-1] < losses[0] == pytest.approx(5.6, abs=0.1)


@pytest.mark.slow
def test_two_pipes_train_evaluate_and_are_resumed_with_one(make_config):
    """Their evaluation runs in pipe 0 alone, and their checkpoints know nothing of pipes."""
    one = make_config("one", train__num_steps=3, train__eval_every=1)
    two = make_config("two", train__num_steps=2, train__eval_every=1, pipeline__schedule="chimera")
    run(one)
    run(two)
    run(resumed(two, train={"num_steps": 3}, pipeline={"schedule": "1f1b"}))
    expected, found = metrics_of(one), metrics_of(two)
    assert found[0]["eval_loss"] == expected[0]["eval_loss"]
    for key in ("loss", "grad_norm", "eval_loss"):
        values = [line[key] for line in found if key in line]
        # 1e-5: of the contract; the pipes add up the same terms in another order
        assert values == pytest.approx([line[key] for line in expected if key in line], rel=1e-5), key


def test_logging_less_changes_nothing_and_times_whole_stretches(make_config):
    every, third = make_config("every"), make_config("third", run__log_every=3)
    assert run(every) == run(third)
    assert [line["step"] for line in metrics_of(third)] == [3, 5, 5]


def test_checkpoints_are_kept_at_the_interval_and_at_the_end(make_config):
    config = make_config("kept", train__num_steps=5, checkpoint__every=2, checkpoint__keep=3)
    run(config)
    assert saved_steps(config) == [2, 4, 5]


def test_tied_bf16_and_uneven_stages_train(make_config):
    changes = {"model__tie_word_embeddings": True, "train__compute_dtype": "bfloat16"}
    config = make_config("bf16", pipeline__layers_per_stage=[1, 1, 1, 1], **changes)
    run(config)
    losses = [line["loss"] for line in metrics_of(config) if "loss" in line]
    assert losses[-1] < losses[0]


def test_a_run_is_not_overwritten(make_config):
    config = make_config("taken")
    run(config)
    with pytest.raises(InputError, match=r"must hold no other run.*--checkpoint.resume"):
        train(config)


def test_a_mesh_of_more_devices_than_there_are_is_refused(make_config):
    config = make_config("large", mesh__dp=16, pipeline__num_microbatches=1, train__global_batch_size=16)
    with pytest.raises(InputError, match=r"needs 64 devices, but there are 8 .*dp 2 x pp 4 x tp 1"):
        train(config)


def test_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_good_checkpoint(make_config, capsys):
    config = make_config("diverged", optimizer__learning_rate=1e30, checkpoint__every=1, train__num_steps=9)
    assert train(config) == 1
    assert "must stay finite" in capsys.readouterr().err
    lines = metrics_of(config)
    assert all("final" not in line for line in lines)
    saved = [
        int(folder.name) for folder in Path(config.run.dir, "checkpoints").iterdir() if folder.name.isdigit()
    ]
    assert max(saved, default=0) <= lines[-1]["step"]


def test_parameters_that_are_not_finite_are_not_saved(make_config, capsys):
    """Loss and gradient of the only step are finite; its update is not."""
    huge = {"optimizer__learning_rate": 1e38, "optimizer__weight_decay": 1e5, "optimizer__warmup_steps": 0}
    config = make_config("overflow", train__num_steps=1, **huge)
    assert train(config) == 1
    error = capsys.readouterr().err
    assert "4109 of 4112 in params.embedding" in error
    assert "lower optimizer.learning_rate" in error
    assert saved_steps(config) == []


def test_a_run_that_is_refused_leaves_no_directory(make_config):
    config = make_config("refused", mesh__dp=16, pipeline__num_microbatches=1, train__global_batch_size=16)
    with pytest.raises(InputError):
        train(config)
    assert not Path(config.run.dir).exists()


def test_a_dry_run_prints_layout_and_bytes_and_writes_nothing(make_config, capsys):
    config = make_config("dry", pipeline__schedule="zb_h1", train__compute_dtype="bfloat16")
    assert train(config, dry_run=True) == 0
    printed = capsys.readouterr().out
    for words in (
        "zb_h1",
        "parameters",
        "1 1 1 1",
        "residuals",
        "optimizer moments",
        "weights in compute dtype",
    ):
        assert words in printed
    assert not Path(config.run.dir).exists()


def test_a_dry_run_names_the_sums_that_need_more_than_a_tick(make_config, capsys):
    config = make_config("dry", mesh__pp=1, mesh__dp=2, model__vocab_size=4096)
    assert train(config, dry_run=True) == 0
    assert "sums after the ticks" in capsys.readouterr().out


def test_uneven_stages_say_what_their_padding_holds(make_config, capsys):
    config = make_config("dry", pipeline__layers_per_stage=(2, 1, 1, 2), model__num_hidden_layers=6)
    assert train(config, dry_run=True) == 0
    assert "padding of uneven stages  on the rank with most " in capsys.readouterr().out
