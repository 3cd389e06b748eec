"""`jaxpipe plan`: what it lists fits, what is wrong is told at once, and what nothing fits into, too."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpipe.cli import main
from jaxpipe.config import faults, parse
from jaxpipe.planning.costs_file import REMATS, ActionSeconds, MeasuredCosts
from jaxpipe.planning.costs_file import to_text as costs_text

SMALL = """
model:
  vocab_size: 301
  hidden_size: 64
  intermediate_size: 96
  num_hidden_layers: 4
  num_attention_heads: 4
  num_key_value_heads: 2
data: {sequence_length: 32}
pipeline: {num_microbatches: 2}
train: {num_steps: 1, global_batch_size: 8, compute_dtype: bfloat16}
optimizer: {learning_rate: 1.0e-3}
"""

COSTS = MeasuredCosts(
    platform="cpu",
    device_kind="cpu",
    num_devices=2,
    model={},
    compute_dtype="bfloat16",
    sequence_length=32,
    tokens=64,
    tp=1,
    stage_layers=1,
    layer=dict.fromkeys(REMATS, ActionSeconds(1.0, 2.0, 1.0, 3.0, 1.0)),
    stage=dict.fromkeys(REMATS, ActionSeconds(1.0, 2.0, 1.0, 3.0, 1.0)),
    head=0.5,
    embedding=0.1,
    message_bytes=64,
    transfer=0.01,
    tick=0.01,
    update_per_parameter=1e-9,
    sharing=(1.0, 2.0),
)
"""Of two emulated devices on one core, at microbatches of two sequences."""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return str(path)


def planned(*words: str) -> list[str]:
    return ["plan", *words]


def test_every_layout_listed_fits_and_would_run(model: str, tmp_path: Path) -> None:
    """At half of what the fastest of all needs; bytes are those that a dry run counts."""
    output = tmp_path / "plan.json"
    words = ["--model", model, "--devices", "4", "--format", "json", "-o", str(output), "--top", "40"]
    assert main(planned(*words, "--memory", "1GB")) == 0
    memory = json.loads(output.read_text())["layouts"][0]["bytes"] // 2
    assert main(planned(*words, "--memory", f"{memory / 1000}kB")) == 0
    answer = json.loads(output.read_text())
    assert answer["layouts"]
    assert all(0 < layout["bytes"] <= memory for layout in answer["layouts"])
    seconds = [layout["step_seconds"] for layout in answer["layouts"]]
    assert seconds == sorted(seconds)
    assert all(layout["bytes"] > memory for layout in answer["faster_but_too_large"])
    assert all(sum(layout["bytes_by_part"].values()) == layout["bytes"] for layout in answer["layouts"])
    flags = [word for flag in answer["flags"] for word in flag.split()]
    config = parse([model, *flags, "--dry-run"]).config
    assert faults(config) == []
    assert config.mesh.dp * config.mesh.pp * config.mesh.tp == 4
    assert config.pipeline.schedule == answer["layouts"][0]["schedule"]


def test_the_text_says_why_others_lost_and_what_to_run(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "frontier.svg"
    words = ["--model", model, "--devices", "4", "--memory", "1GB", "--top", "8", "--picture", str(picture)]
    assert main(planned(*words)) == 0
    text = capsys.readouterr().out
    assert "estimated from data sheets" in text
    assert "2: fits, and as fast as the first\n" in text
    assert re.search(r"\n\d: fits, but \d+\.\d% slower: ", text)
    assert f"python train.py {model} --mesh." in text
    assert "tp 4 does not divide num_key_value_heads=2" in text
    drawn = picture.read_text()
    assert drawn.startswith("<svg ")
    assert drawn.count("(counted)</title>") == 1


WRONG = """
import sys
from jaxpipe.cli import main
code = main(sys.argv[1:])
sys.exit("loaded JAX" if "jax" in sys.modules else code)
"""


def test_all_that_is_wrong_is_told_at_once_and_before_jax_is_loaded() -> None:
    words = ["--model", "missing.yaml", "--devices", "0", "--memory", "80XB", "--top", "many"]
    words += ["--device", "Abacus", "--costs", "none.json", "--format", "poem", "--picture", "frontier.png"]
    command = [sys.executable, "-c", WRONG, *planned(*words)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 2, finished.stderr
    for said in (
        "--model 'missing.yaml' cannot be read",
        "--devices 0 must be at least 1",
        "--memory '80XB' must be a number and one of",
        "--top 'many'",
        "--device is settled by --costs",
        "none.json: cannot be read",
        "--format 'poem' must be one of",
        "--picture 'frontier.png' must end with .svg",
    ):
        assert said in finished.stderr, finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--devices", "4", "--memory", "100kB"], "the least is"),
        (["--devices", "7", "--memory", "1GB"], "no mesh of so many can run"),
        (["--devices", "1", "--memory", "1GB", "--device", "Abacus"], "--device 'Abacus' is not known"),
        (["--devices", "1", "--memory", "1GB", "--sequence-length", "4096"], "data.sequence_length=4096"),
        (["--devices", "1", "--memory", "0GB"], "--memory '0GB'"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(
    words: list[str], said: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(planned("--model", model, *words)) == 2
    assert said in capsys.readouterr().err


def test_schedules_that_are_the_same_are_listed_once(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sequence a step is one microbatch, whose order is the same under many names."""
    output = tmp_path / "plan.json"
    words = ["--model", model.replace("small", "one"), "--devices", "2", "--memory", "1GB", "--top", "12"]
    one = SMALL.replace("num_microbatches: 2", "num_microbatches: 1").replace("size: 8", "size: 1")
    Path(words[1]).write_text(one)
    assert main(planned(*words, "--format", "json", "-o", str(output))) == 0
    entries = json.loads(output.read_text())["layouts"]
    names = ("dp", "pp", "tp", "zero", "num_chunks", "transfer_ticks", "fuse_backward", "remat", "bytes")
    kinds = [(*(entry[name] for name in names), f"{entry['step_seconds']:.9g}") for entry in entries]
    assert len(set(kinds)) == len(kinds)
    fused = next(entry for entry in entries if entry["pp"] == 2 and entry["num_chunks"] == 1)
    assert fused["schedule"] == "gpipe"
    assert fused["schedules_alike"][0] == "1f1b"
    assert main(planned(*words)) == 0
    said = capsys.readouterr().out
    assert ": 1f1b, zb_h1" in said
    assert "would be the same here" in said
    assert " 0.0% slower" not in said


def test_a_picture_that_cannot_be_written_after_all_leaves_the_plan(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()

    def draw_and_lose_the_folder(*_: object, **__: object) -> str:
        folder.rmdir()
        return "<svg/>"

    monkeypatch.setattr("jaxpipe.cli.plan.draw_frontier", draw_and_lose_the_folder)
    words = ["--model", model, "--devices", "1", "--memory", "1GB", "--top", "1"]
    assert main(planned(*words, "--picture", str(folder / "x.svg"))) == 2
    captured = capsys.readouterr()
    assert "run the first:" in captured.out
    assert f"--picture '{folder}/x.svg' cannot be written: No such file" in captured.err


def test_times_at_microbatches_that_were_not_profiled_are_marked(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text(costs_text(COSTS))
    words = ["--model", model, "--devices", "2", "--memory", "1GB", "--costs", str(costs)]
    assert main(planned(*words, "--format", "json")) == 0
    entries = json.loads(capsys.readouterr().out)["layouts"]
    for entry in entries:
        tokens = 8 // (entry["dp"] * entry["num_microbatches"]) * 32
        assert entry["tokens_as_profiled"] == (tokens == 64)
    others = [str(number) for number, entry in enumerate(entries, 1) if not entry["tokens_as_profiled"]]
    assert 0 < len(others) < len(entries)
    assert main(planned(*words)) == 0
    said = capsys.readouterr().out
    marked = next(line for line in said.splitlines() if "reliable only at the profiled 64 tokens" in line)
    assert re.findall(r"\d+", marked)[1:] == others
    assert "devices share cores: the bubble is what waiting costs" in said
