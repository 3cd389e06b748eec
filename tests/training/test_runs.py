"""Whole runs through ``train``: the numerics contract as a user meets it, in this process."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from jaxpipe.config import Config, from_yaml
from jaxpipe.errors import InputError
from jaxpipe.schedules import build, to_csv
from jaxpipe.training.trainer import train

BASE = """
model: {vocab_size: 257, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 4, num_attention_heads: 4,
        num_key_value_heads: 2, max_position_embeddings: 32}
data: {sequence_length: 16}
mesh: {pp: 4}
pipeline: {num_microbatches: 4}
train: {num_steps: 5, global_batch_size: 8}
optimizer: {learning_rate: 0.01, warmup_steps: 2, decay_steps: 12, max_grad_norm: 0.5}
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    """A few files, so that there are two sides and documents shorter than a sample."""
    folder = tmp_path_factory.mktemp("text")
    for index in range(12):
        words = " ".join(f"{index * step % 89:x}" for step in range(20 + 40 * index))
        (folder / f"{index}.txt").write_text(words)
    return str(folder)


@pytest.fixture
def make_config(text, tmp_path):
    def make(name: str, **changes) -> Config:
        """BASE with ``section__key=value`` changed, in a run directory of that name."""
        values = yaml.safe_load(BASE)
        values["data"]["path"] = text
        values["data"]["validation_fraction"] = 0.2
        values["run"] = {"dir": str(tmp_path / name)}
        for key, value in changes.items():
            section, field = key.split("__")
            values.setdefault(section, {})[field] = value
        return from_yaml(yaml.safe_dump(values))

    return make


def metrics_of(config: Config) -> list[dict]:
    assert config.run.dir is not None
    return [json.loads(line) for line in (Path(config.run.dir) / "metrics.jsonl").read_text().splitlines()]


def final_hash(config: Config) -> str:
    last = metrics_of(config)[-1]
    assert last["final"] is True
    assert last["step"] == config.train.num_steps
    return last["params_sha256"]


def saved_steps(config: Config) -> list[int]:
    folders = Path(config.run.dir, "checkpoints").iterdir()
    return sorted(int(folder.name) for folder in folders if folder.name.isdigit())


def run(config: Config) -> str:
    assert train(config) == 0
    return final_hash(config)


def resumed(config: Config, **changes) -> Config:
    checkpoint = dataclasses.replace(config.checkpoint, resume=True)
    sections = {
        section: dataclasses.replace(getattr(config, section), **values)
        for section, values in changes.items()
    }
    return dataclasses.replace(config, checkpoint=checkpoint, **sections)


def test_schedules_on_one_mesh_end_with_the_same_parameters_to_the_bit(make_config):
    forms = [("gpipe", True), ("1f1b", True), ("1f1b", False), ("zb_h1", False)]
    hashes = {
        run(make_config(f"{name}-{fuse}", pipeline__schedule=name, pipeline__fuse_backward=fuse))
        for name, fuse in forms
    }
    assert len(hashes) == 1


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1"])
def test_six_steps_equal_three_and_three_resumed(make_config, schedule):
    whole = make_config("whole", pipeline__schedule=schedule, train__num_steps=6)
    half = make_config("half", pipeline__schedule=schedule, train__num_steps=3)
    expected = run(whole)
    run(half)
    rest = resumed(half, train={"num_steps": 6})
    assert run(rest) == expected
    timeless = [
        [{key: value for key, value in line.items() if "second" not in key} for line in metrics_of(config)]
        for config in (whole, rest)
    ]
    assert timeless[0] == timeless[1]


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


@pytest.mark.parametrize(
    "mesh",
    [{"pp": 2, "dp": 2}, {"pp": 2, "dp": 2, "tp": 2, "zero": 3, "sequence_parallel": True}],
    ids=["dp 2 x pp 2", "dp 2 x pp 2 x tp 2 with ZeRO 3"],
)
def test_a_checkpoint_resumes_on_another_mesh_with_another_schedule(make_config, mesh):
    whole = make_config("whole", train__num_steps=4)
    half = make_config("half", train__num_steps=3)
    run(whole)
    run(half)
    rest = resumed(
        half,
        train={"num_steps": 4},
        mesh=mesh,
        pipeline={"schedule": "zb_h1", "num_microbatches": 2, "layers_per_stage": (3, 1)},
    )
    run(rest)
    expected, found = metrics_of(whole)[-2], metrics_of(rest)[-2]
    assert found["step"] == expected["step"] == 4
    # 1e-6: another mesh adds up the same numbers in another order
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)


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
    assert "parameter norm" in capsys.readouterr().err
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


def test_uneven_stages_say_what_their_padding_holds(make_config, capsys):
    config = make_config("dry", pipeline__layers_per_stage=(2, 1, 1, 2), model__num_hidden_layers=6)
    assert train(config, dry_run=True) == 0
    assert "padding of uneven stages  on the rank with most " in capsys.readouterr().out
