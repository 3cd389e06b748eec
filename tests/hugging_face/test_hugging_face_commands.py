"""``jaxpipe import-hf``, ``export-hf`` and ``compare-hf``: what they refuse, and what they leave behind."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hf_runs import import_run, params_of
from weight_files import MODEL, make_tensors, save_shards, save_single

from jaxpipe.cli import main
from jaxpipe.hugging_face.config_json import config_json
from jaxpipe.schedules import build, to_csv
from jaxpipe.training import weights_import

ROOT = Path(__file__).parents[2]

WITHOUT_JAX = """
import sys
from jaxpipe.cli import main

sys.exit(main(sys.argv[1:]) + 10 * ("jax" in sys.modules))
"""
"""The command's own code, and 10 more if it has loaded JAX."""


def write_config(folder: Path, **changes: object) -> None:
    (folder / "config.json").write_text(config_json(replace(MODEL, **changes), dtype="float32", token_ids={}))


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    folder = save_shards(tmp_path / "hf", make_tensors())
    write_config(folder)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory, text: str) -> Path:
    """A run that was imported."""
    folder = tmp_path_factory.mktemp("saved")
    save_single(folder / "hf", make_tensors())
    write_config(folder / "hf")
    assert import_run(folder / "hf", folder / "run", text) == 0
    return folder / "run"


def test_what_is_wrong_with_the_run_is_told_at_once_and_nothing_is_made(hf, tmp_path, text, capsys) -> None:
    flags = ("--model.rope_theta", 5, "--mesh.tp", 2, "--run.dir", "x")
    assert import_run(hf, tmp_path / "run", text, *flags) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert all(line.startswith("jaxpipe import-hf: ") for line in said)
    assert not (tmp_path / "run").exists()


def test_a_directory_that_has_a_run_is_refused(hf, tmp_path, text, capsys) -> None:
    assert import_run(hf, tmp_path / "run", text) == 0
    assert import_run(hf, tmp_path / "run", text) == 2
    said = capsys.readouterr().err
    assert "already holds a run (it has config.yaml); name another directory\n" in said
    assert "resume" not in said  # an import cannot


def test_the_command_to_go_on_can_be_pasted(hf, tmp_path, text, capsys) -> None:
    run = tmp_path / "my $run's"
    assert import_run(hf, run, text) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert shlex.split(line) == ["python", "train.py", f"{run}/config.yaml", "--checkpoint.resume"]


@pytest.mark.parametrize("place", ["", "run", "checkpoints/0", ".."])
def test_a_run_and_the_folder_of_its_model_lie_apart(hf, text, capsys, place: str) -> None:
    before = sorted(hf.parent.rglob("*"))
    assert import_run(hf, hf / place, text) == 2
    assert "must lie apart from" in capsys.readouterr().err
    assert sorted(hf.parent.rglob("*")) == before


KILLED = """
import os, sys
from jaxpipe.cli import main
from jaxpipe.training import weights_import

def kill(*_):
    os.kill(os.getpid(), int(os.environ["SIGNAL"]))

weights_import.write_config = kill
sys.exit(main(sys.argv[1:]))
"""


def end_import(signal_number: int, hf: Path, run: Path, text: str) -> subprocess.CompletedProcess[str]:
    """An import that gets the signal when only its configuration is not written yet."""
    return subprocess.run(
        [sys.executable, "-c", KILLED, "import-hf", str(hf), str(run), "--mesh.pp", "1", "--data.path", text],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"SIGNAL": str(int(signal_number))},
    )


def test_what_a_killed_import_has_left_is_replaced_by_a_new_one(hf, tmp_path, text) -> None:
    run = tmp_path / "run"
    assert end_import(signal.SIGKILL, hf, run, text).returncode == -signal.SIGKILL
    assert sorted(path.name for path in run.iterdir()) == [".lock", "checkpoints", "imported.txt"]
    (run / "tokenizer").mkdir()  # whatever else it writes before its end
    (run / "schedule.csv").write_text("")
    (run / "checkpoints" / "0" / "manifest.json").write_text("{")
    assert import_run(hf, run, text) == 0
    there = {path.name for path in run.iterdir()}
    assert there == {".lock", "checkpoints", "config.yaml", "imported.txt"}
    assert params_of(run)


def test_sigterm_ends_an_import_with_143_and_leaves_nothing(hf, tmp_path, text) -> None:
    done = end_import(signal.SIGTERM, hf, tmp_path / "run", text)
    assert (done.returncode, done.stderr) == (143, "jaxpipe import-hf: terminated\n")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


TERMINATED = """
import os, signal, sys
from jaxpipe.cli import main
from jaxpipe.cli.hugging_face import export_hf

def terminate(*_):
    os.kill(os.getpid(), signal.SIGTERM)

export_hf.write_part = terminate
sys.exit(main(sys.argv[1:]))
"""


def test_sigterm_ends_an_export_with_143_and_leaves_nothing(saved, tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED, "export-hf", str(saved), str(tmp_path / "out")],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (143, "jaxpipe export-hf: terminated\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["checkpoints/1", "checkpoints/0/hf", "checkpoints/hf"])
def test_an_export_writes_nothing_among_the_checkpoints(saved, capsys, place: str) -> None:
    assert main(["export-hf", str(saved), str(saved / place)]) == 2
    assert "must not lie among the checkpoints" in capsys.readouterr().err
    assert [path.name for path in (saved / "checkpoints").iterdir()] == ["0"]


def test_weights_that_do_not_fit_are_refused_before_jax_is_loaded(hf, tmp_path, text) -> None:
    (hf / "model-1-of-2.safetensors").unlink()
    command = [
        sys.executable,
        "-c",
        WITHOUT_JAX,
        "import-hf",
        str(hf),
        str(tmp_path / "run"),
        "--mesh.pp",
        "1",
    ]
    done = subprocess.run([*command, "--data.path", text], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2, done.stderr
    assert "names model-1-of-2.safetensors, which is missing" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_dry_run_tells_the_layout_and_writes_nothing(hf, tmp_path, text, capsys) -> None:
    assert import_run(hf, tmp_path / "run", text, "--dry-run", "true") == 0
    assert "parameters" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_named_and_leaves_no_run(tmp_path, text, capsys, value) -> None:
    tensors = make_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"][2, 3] = value
    folder = save_single(tmp_path / "hf", tensors)
    write_config(folder)
    assert import_run(folder, tmp_path / "run", text) == 2
    said = capsys.readouterr().err
    assert "params.layers.kernels.mlp.gate_up.up_proj" in said
    assert said.endswith("that is in model.layers.1.mlp.up_proj.weight\n")
    save_single(tmp_path / "hf", make_tensors())
    assert import_run(folder, tmp_path / "run", text) == 0


def test_an_import_that_is_broken_off_leaves_no_run_that_would_start_from_random_weights(
    hf, tmp_path, text, capsys, monkeypatch
) -> None:
    def full(*_: object) -> None:
        assert (tmp_path / "run" / "checkpoints" / "0" / "manifest.json").exists()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights_import, "write_config", full)
    assert import_run(hf, tmp_path / "run", text) == 1
    assert "run could not be read or written: No space left on device" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_a_schedule_from_a_file_becomes_the_runs_own(hf, tmp_path, text) -> None:
    (tmp_path / "mine.csv").write_text(to_csv(build("1f1b", num_ranks=1, num_microbatches=4)))
    assert import_run(hf, tmp_path / "run", text, "--pipeline.schedule", tmp_path / "mine.csv") == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["pipeline"]["schedule"] == str(tmp_path / "run" / "schedule.csv")
    assert (tmp_path / "run" / "schedule.csv").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dtype", "int8"], "--dtype 'int8' must be one of float32, float16, bfloat16"),
        (["--max-shard-size", "big"], "--max-shard-size 'big' must be a size"),
        (["--max-shard-size", "9" * 400], "--max-shard-size '9999"),
        (["--max-shard-size", "0GB"], "--max-shard-size '0GB' must be a size"),
    ],
)
def test_an_export_refuses_what_it_does_not_know(
    saved, tmp_path, capsys, flags: list[str], words: str
) -> None:
    assert main(["export-hf", str(saved), str(tmp_path / "out"), *flags]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_export_overwrites_nothing_and_wants_a_whole_checkpoint(saved, tmp_path, capsys) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").write_text("")
    assert main(["export-hf", str(saved), str(tmp_path / "mine")]) == 2
    assert "must not exist yet" in capsys.readouterr().err
    run = Path(shutil.copytree(saved, tmp_path / "run"))
    largest = max((run / "checkpoints").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    assert main(["export-hf", str(run), str(tmp_path / "out")]) == 2
    assert "must be whole" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_export_loads_no_jax(saved, tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX, "export-hf", str(saved), str(tmp_path / "out")],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "30 tensors of step 0, float32" in done.stdout


def test_a_comparison_ends_with_1_above_the_tolerance(saved, capsys) -> None:
    hf = str(saved.parent / "hf")
    assert main(["compare-hf", hf, str(saved), "--sequence-length", "8", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "largest difference of logits" in out
    assert "8 of 8" in out
    assert "more than" not in out
    assert main(["compare-hf", hf, str(saved), "--tolerance", "0"]) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("they differ by more than the tolerance, ")
    assert "RoPE" not in said
    assert main(["compare-hf", hf, str(saved), "--tolerance", "0", "--sequence-length", "600"]) == 1
    assert "rounding of RoPE" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--sequence-length", "0", "--seed", "x", "--tolerance", "nan"], ["0", "'x'", "'nan'"]),
        (["--sequence-length", "9" * 5000], ["--sequence-length '999"]),
        (["--sequence-length", "2049"], ["must be at most max_position_embeddings=2048"]),
    ],
)
def test_a_comparison_refuses_what_cannot_be(saved, capsys, flags: list[str], words: list[str]) -> None:
    assert main(["compare-hf", str(saved.parent / "hf"), str(saved), *flags]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


def test_a_comparison_of_other_vocabularies_is_refused(saved, tmp_path, capsys) -> None:
    tensors = make_tensors()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = np.concatenate([tensors[name], tensors[name][:3]])
    folder = save_single(tmp_path / "hf", tensors)
    write_config(folder, vocab_size=260)
    assert main(["compare-hf", str(folder), str(saved)]) == 2
    assert "vocab_size is 260 in" in capsys.readouterr().err


def test_a_comparison_without_transformers_says_what_to_install(saved, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["compare-hf", str(saved.parent / "hf"), str(saved)]) == 2
    assert "pip install torch transformers" in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_import_the_bits_of_one(hf, tmp_path, text) -> None:
    """Each reads the shares of its own two devices; process 0 alone prints."""
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
    values = {
        "--data.path": text,
        "--data.sequence_length": 16,
        "--mesh.pp": 2,
        "--mesh.dp": 2,
        "--mesh.zero": 1,
        "--distributed.coordinator": address,
        "--distributed.num_processes": 2,
        "--distributed.timeout": 60,
    }
    flags = [str(word) for pair in values.items() for word in pair]
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    command = [sys.executable, "-m", "jaxpipe", "import-hf", str(hf), str(tmp_path / "two"), *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [
        subprocess.Popen(
            [*command, "--distributed.process_id", str(number)], env=environment, cwd=ROOT, text=True, **pipes
        )
        for number in (0, 1)
    ]
    said = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert ["checkpoint 0" in out for out, _ in said] == [True, False]
    assert import_run(hf, tmp_path / "one", text) == 0
    one, two = params_of(tmp_path / "one"), params_of(tmp_path / "two")
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)
    assert "coordinator: null" in (tmp_path / "two" / "config.yaml").read_text()
