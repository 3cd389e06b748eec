"""``jaxpipe profile``: the file that it writes, its table, and what it refuses before JAX starts."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jaxpipe.cli import main
from jaxpipe.cli.profile_table import profile_lines
from jaxpipe.config import MeshConfig
from jaxpipe.planning.costs_file import REMATS, ActionSeconds, MeasuredCosts, read_costs
from jaxpipe.profiling.measure import Profile
from jaxpipe.profiling.timing import Seconds

CONFIG = {
    "model": {
        "vocab_size": 262,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 16,
    },
    "data": {"sequence_length": 16, "isolate_documents": True},
    "mesh": {"pp": 2, "tp": 2, "sequence_parallel": True},
    "pipeline": {"num_microbatches": 2},
    "train": {"num_steps": 1, "global_batch_size": 6, "compute_dtype": "bfloat16"},
    "optimizer": {"learning_rate": 1e-3},
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(CONFIG))
    return "tiny.yaml"


@pytest.mark.slow
def test_it_measures_the_configuration_that_it_is_given(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model.num_hidden_layers", "6"]
    assert main(["profile", "--rounds", "1", config, "--layers", "1", "-o", "c.json", *flags]) == 0
    costs = read_costs(Path("c.json"))
    assert costs.model["num_hidden_layers"] == 6
    assert (costs.stage_layers, costs.tp, costs.num_devices) == (1, 2, 4)
    assert costs.tokens == 3 * 16
    assert costs.message_bytes == 3 * 16 * 16 * 2 // 2  # bf16, and half of the tokens on each device
    assert costs.layer == costs.stage
    assert len(costs.sharing) == 4
    assert costs.sharing[:2] == (1.0, 1.0)  # a rank is two devices
    assert costs.sharing[3] > 0
    assert costs.transfer > 0
    shown = capsys.readouterr().out
    assert shown.startswith("4 x cpu (cpu), bfloat16, 48 tokens a microbatch in sequences of 16, tp 2\n")
    assert all(f"remat {remat}, 1 layer" in shown for remat in REMATS)
    assert "message to a neighbour, 768 bytes" in shown
    assert "an action while 4 devices act, over one alone" in shown
    assert shown.endswith("written to c.json\n")


def test_the_table_says_what_was_not_measured() -> None:
    actions = dict.fromkeys(REMATS, ActionSeconds(1.0, 2.0, 4.0, 6.0, 1.0))
    costs = MeasuredCosts(
        platform="gpu",
        device_kind="Some GPU",
        num_devices=1,
        model={},
        compute_dtype="float32",
        sequence_length=16,
        tokens=32,
        tp=1,
        stage_layers=1,
        layer=actions,
        stage=actions,
        head=0.25,
        embedding=1e-6,
        message_bytes=64,
        transfer=0.0,
        tick=2e-5,
        update_per_parameter=3e-10,
        sharing=(1.0,),
    )
    spread = {
        f"layer.{remat}.{kind}": Seconds(seconds, 0.9 * seconds, 1.2 * seconds)
        for remat in REMATS
        for kind, seconds in vars(actions[remat]).items()
    }
    others = ("head", "embedding", "tick", "update_per_parameter")
    spread |= {name: Seconds(*[getattr(costs, name)] * 3) for name in others}
    lines = list(profile_lines(Profile(costs, spread), MeshConfig(dp=2, pp=4), num_rounds=3))
    assert lines[3].split() == ["F", "B", "W", "BW", "R"]
    assert lines[4].split()[-2:] == ["s", "±15%"]
    assert [line.split()[-3:-1] for line in lines[9:13]] == [
        ["250", "ms"],
        ["1", "us"],
        ["20", "us"],
        ["0.3", "ns"],
    ]
    assert "the mesh wants 8 devices, but there are 1" in lines[-3]
    assert lines[-1].startswith("no message was timed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.yaml"], "there is no file missing.yaml"),
        (["--layers", "5"], "--layers 5 must be at least 1 and at most model.num_hidden_layers=4"),
        (["--layers", "0"], "--layers 0 must be at least 1"),
        (["--rounds", "many"], "--rounds 'many' must be a whole number"),
        (["--rounds", "0"], "--rounds 0 must be at least 1 and at most 1000"),
        (["-o", "nowhere/costs.json"], "must lie in a folder that exists"),
        (["--model.hidden_size", "none"], "model.hidden_size"),
        (["--mesh.tp", "3"], "must be a multiple of mesh.tp=3"),
        (["--pipeline.shedule", "1f1b"], "--pipeline.shedule is not a flag"),
        (["--dry-run"], "--dry-run is for train.py; leave it out"),
        (["tiny.yaml", "other.yaml"], "there is no place for 'other.yaml'"),
    ],
)
def test_what_is_wrong_is_refused(
    words: list[str], said: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words if words[0].endswith(".yaml") else [config, *words]
    assert main(["profile", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert not Path("costs.json").exists()


def test_all_faults_are_told_at_once_and_before_jax_is_loaded(config: str) -> None:
    program = (
        "import sys; from jaxpipe.cli import main; "
        f"code = main(['profile', '{config}', '--layers', '9', '--rounds', '0', '--train.num_steps', '0']); "
        "sys.exit(10 * ('jax' in sys.modules) + code)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert finished.returncode == 2
    assert "train.num_steps=0 must be at least 1" in finished.stderr
    assert "--rounds 0" in finished.stderr


def test_a_rank_of_more_devices_than_there_are_is_refused(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--model.num_attention_heads", "16", "--model.num_key_value_heads", "16"]
    wide = ["--model.intermediate_size", "32", "--mesh.tp", "16", "--model.head_dim", "2"]
    assert main(["profile", config, *sizes, *wide]) == 2
    assert "mesh.tp=16 needs 16 devices for one rank, but there are 8 (cpu)" in capsys.readouterr().err
