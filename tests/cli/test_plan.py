"""`jaxpipe plan`: what it lists fits, what is wrong is told at once, and what nothing fits into, too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpipe.cli import main
from jaxpipe.config import faults, parse

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
    words = ["--model", model, "--devices", "4", "--format", "json", "-o", str(output), "--top", "4"]
    assert main(planned(*words, "--memory", "1GB")) == 0
    memory = json.loads(output.read_text())["layouts"][0]["bytes"] // 2
    assert main(planned(*words, "--memory", f"{memory / 1000}kB")) == 0
    answer = json.loads(output.read_text())
    assert answer["layouts"]
    assert all(0 < layout["bytes"] <= memory for layout in answer["layouts"])
    seconds = [layout["step_seconds"] for layout in answer["layouts"]]
    assert seconds == sorted(seconds)
    assert all(layout["bytes"] > memory for layout in answer["faster_but_too_large"])
    flags = [word for flag in answer["flags"] for word in flag.split()]
    config = parse([model, *flags, "--dry-run"]).config
    assert faults(config) == []
    assert config.mesh.dp * config.mesh.pp * config.mesh.tp == 4
    assert config.pipeline.schedule == answer["layouts"][0]["schedule"]


def test_the_text_says_why_others_lost_and_what_to_run(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "frontier.svg"
    words = ["--model", model, "--devices", "4", "--memory", "1GB", "--top", "3", "--picture", str(picture)]
    assert main(planned(*words)) == 0
    text = capsys.readouterr().out
    assert "estimated from data sheets" in text
    assert "2: fits, but " in text
    assert "% slower" in text
    assert f"python train.py {model} --mesh." in text
    assert "tp 4 does not divide num_key_value_heads=2" in text
    assert picture.read_text().startswith("<svg ")


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
