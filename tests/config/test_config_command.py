"""The command line: unknown flags, all faults at once, run directories, help, and no JAX."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from jaxpipe.config import RUN_FILES, parse
from jaxpipe.config.keys import flatten, keys

ROOT = Path(__file__).parents[2]


def test_the_example_of_the_readme_gives_what_it_says(tmp_path):
    argv = ["configs/tiny.yaml", "--pipeline.schedule", "zb_h1", "--train.num_steps", "20"]
    command = parse([*argv, "--run.dir", str(tmp_path / "x")])
    assert not command.dry_run
    assert command.config.pipeline.schedule == "zb_h1"
    assert command.config.train.num_steps == 20
    assert command.config.run.dir == str(tmp_path / "x")


def test_without_a_file_the_preset_is_tiny_wherever_the_process_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = parse([]).config
    assert config.model.hidden_size == 128
    assert re.fullmatch(r"runs/tiny-\d{8}-\d{6}", config.run.dir)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("optimizer.learnig_rate", "optimizer.learning_rate"),
        ("train.learnig_rate", "optimizer.learning_rate"),
        ("train.learning_rate", "optimizer.learning_rate"),
        ("model.num-layers", "model.num_hidden_layers"),
        ("model.num_layers", "model.num_hidden_layers"),
        ("model.hiden_size", "model.hidden_size"),
        ("trian.num_steps", "train.num_steps"),
        ("pipeline.num_microbatch", "pipeline.num_microbatches"),
        ("model.rope_scaling.type", "model.rope_scaling.rope_type"),
        ("model.rope_scaling.facter", "model.rope_scaling.factor"),
    ],
)
def test_an_unknown_key_is_refused_with_the_one_that_was_meant(written, meant, tmp_path, write_yaml, refuse):
    assert f"--{written} is not a flag; did you mean --{meant}?" in refuse(write_yaml(), f"--{written}", "3")
    section, *names = written.split(".")
    file = tmp_path / "typo.yaml"
    file.write_text("".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate([section, *names])))
    line, unknown, near = (1, section, "train") if section == "trian" else (1 + len(names), written, meant)
    said = f"typo.yaml:{line}: {unknown} is not a key of the configuration; did you mean {near}?"
    assert said in refuse(str(file))


def test_a_key_that_resembles_none_gets_no_advice(write_yaml, refuse):
    assert "--zzzzqqq is not a flag\n" in refuse(write_yaml(), "--zzzzqqq")


def test_all_faults_are_told_at_once(write_yaml, refuse):
    file = write_yaml(
        {
            "model.vocab_size": 100,
            "model.hidden_siz": 3,
            "model.num_key_value_heads": 4,
            "train.num_steps": "many",
            "train.eval_every": True,
            "optimizer.beta2": 1.0,
            "pipeline.schedule": "2f2b",
        }
    )
    err = refuse(file, "--train.global_batch_size", "7", "--mesh.tp", "0", "--nonsense", "--run.dir")
    said = (
        "11 faults",
        "model.vocab_size=100 must be at least 257",
        "model.hidden_siz is not a key",
        "model.num_key_value_heads=4",
        "train.num_steps must be a whole number, found 'many'",
        "train.eval_every must be a whole number, found 'true'",
        "optimizer.beta2=1.0",
        "schedule '2f2b' does not exist",
        "train.global_batch_size=7",
        "mesh.tp=0",
        "--nonsense is not a flag",
        "--run.dir needs a value",
    )
    for words in said:
        assert words in err
    assert len(err.splitlines()) == 12


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--train.num_steps"], "--train.num_steps needs a value"),
        (["--train.num_steps", "--run.seed", "3"], "--train.num_steps needs a value"),
        (["--train.num_steps="], "train.num_steps must be a whole number, found ''"),
        (["--train.num_steps", "3", "--train.num-steps=4"], "--train.num-steps is given twice"),
        (["--train", "3"], "train is a section and takes no value"),
        (["--model", "none"], "model is a section and takes no value"),
        (
            ["--model.rope_scaling.factor", "0.5", "--model.rope_scaling", "none"],
            "--model.rope_scaling contradi",
        ),
        (
            ["--model.rope_scaling=none", "--model.rope_scaling.factor=4"],
            "r contradicts --model.rope_scaling;",
        ),
        (["--dryrun"], "--dryrun is not a flag; did you mean --dry-run?"),
        (["--hepl"], "--hepl is not a flag; did you mean --help?"),
        (["-dry-run"], "-dry-run is not a flag; did you mean --dry-run?"),
        (["--dry-run", "no"], "--dry-run must be true or false, found 'no'"),
        (["--dry-run", "--dry-run=false"], "--dry-run is given twice; keep one"),
        (["--checkpoint.resume", "maybe"], "checkpoint.resume must be true or false, found 'maybe'"),
        (["-x"], "-x is not a flag"),
        (["--"], "-- is not a flag"),
        (["other.yaml"], "there is no place for 'other.yaml'"),
        (["--train.num_steps", "3", "4"], "--train.num_steps takes one value; there is no place for '4'"),
        (["--checkpoint.resume", "yes"], "checkpoint.resume must be true or false, found 'yes'"),
        (["--train.num_steps", "-5"], "train.num_steps=-5 must be at least 1"),
        (["--optimizer.eps", "-1e-8"], "optimizer.eps=-1e-08 must be above 0"),
        (["--data.path", "pyproject.toml"], "pyproject.toml is none of .txt, .py, .md, .jsonl"),
    ],
)
def test_flags_that_cannot_be_read_are_refused(argv, said, write_yaml, refuse):
    assert said in refuse(write_yaml(), *argv)


@pytest.mark.parametrize("argv", [["--checkpoint.resume", "maybe"], ["--train.num_steps", "3", "4"]])
def test_a_word_too_many_is_never_taken_for_a_file(argv, refuse):
    assert "there is no file" not in refuse(*argv)


def test_dry_run_is_a_switch_like_every_other(write_yaml):
    for words, expected in [
        (["--dry-run"], True),
        (["--dry-run=false"], False),
        (["--dry_run", "True"], True),
    ]:
        assert parse([write_yaml(), *words]).dry_run is expected
    assert parse(["--dry-run", write_yaml()]).config.model.hidden_size == 48


@pytest.mark.parametrize("held", RUN_FILES)
def test_a_directory_that_holds_a_run_is_refused_unless_resumed(held, tmp_path, write_yaml, refuse):
    run = tmp_path / "run"
    run.mkdir()
    argv = [write_yaml(), "--run.dir", str(run)]
    assert parse(argv).config.run.dir == str(run)
    (run / held).mkdir()
    assert f"run.dir={run} already holds a run (it has {held})" in refuse(*argv)
    (run / "config.yaml").mkdir(exist_ok=True)
    assert parse([*argv, "--checkpoint.resume"]).config.checkpoint.resume
    assert parse([*argv, "--dry-run"]).dry_run


def test_only_a_run_can_be_resumed(tmp_path, write_yaml, refuse):
    argv = [write_yaml(), "--checkpoint.resume"]
    assert "checkpoint.resume needs the directory of a run; give run.dir" in refuse(*argv)
    assert "holds no run to resume" in refuse(*argv, "--run.dir", str(tmp_path / "nothing"))
    (tmp_path / "file").touch()
    assert "is a file; name a directory" in refuse(*argv, "--run.dir", str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("directory", "said"),
    [
        ("a" * 300, "file name too long"),
        ("README.md/x/y", "README.md is a file"),
        ("/proc/nope", "nothing can be written to /proc"),
        ("a\0b", "a path holds no null character"),
    ],
)
def test_a_run_directory_that_cannot_be_made_is_one_fault(directory, said, write_yaml, refuse):
    err = refuse(write_yaml({"run.dir": directory}))
    assert f"run.dir={directory!r} cannot be used: {said}" in err
    assert "train.py: 1 fault in" in err
    assert parse([write_yaml({"run.dir": directory}), "--dry-run"]).dry_run


def test_looking_at_a_run_directory_leaves_no_trace(tmp_path, write_yaml):
    file = write_yaml()
    before = set(tmp_path.iterdir())
    parse([file, "--run.dir", str(tmp_path / "deep" / "run")])
    assert set(tmp_path.iterdir()) == before


PROCESS = {"JAX_COORDINATOR_ADDRESS": "node0:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}


def test_the_variables_of_jax_do_for_flags_and_flags_overrule_them(write_yaml, monkeypatch, tmp_path):
    for name, value in PROCESS.items():
        monkeypatch.setenv(name, value)
    flags = ["--distributed.process_id", "1", "--run.dir", str(tmp_path / "x")]
    found = parse([write_yaml({"distributed.num_processes": 2}), *flags]).config.distributed
    assert (found.coordinator, found.num_processes, found.process_id) == ("node0:1234", 4, 1)


def test_a_fault_in_the_environment_is_told_with_its_variable(write_yaml, monkeypatch, tmp_path, refuse):
    for name, value in PROCESS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JAX_PROCESS_ID", "three")
    said = refuse(write_yaml(), "--run.dir", str(tmp_path / "x"))
    assert "JAX_PROCESS_ID in the environment: distributed.process_id must be a whole number" in said
    monkeypatch.setenv("JAX_PROCESS_ID", "")
    assert "must come with distributed.process_id" in refuse(write_yaml(), "--run.dir", str(tmp_path / "x"))


@pytest.mark.parametrize(
    ("name", "path", "missing"),
    [
        ("JAX_COORDINATOR_ADDRESS", "coordinator", ("num_processes", "process_id")),
        ("JAX_PROCESS_ID", "process_id", ("coordinator", "num_processes")),
    ],
)
def test_a_variable_of_jax_alone_is_named_with_both_ways_out(
    name, path, missing, write_yaml, monkeypatch, refuse
):
    monkeypatch.setenv(name, PROCESS[name])
    said = refuse(write_yaml(), "--run.dir", "x")
    assert (
        f"distributed.{path}={PROCESS[name]} must come with distributed.{missing[0]} and "
        f"distributed.{missing[1]}; give all three, or let distributed.detect find what is missing, "
        f"or unset {name}\n"
    ) in said
    monkeypatch.delenv(name)
    assert "unset" not in refuse(write_yaml(), f"--distributed.{path}", PROCESS[name], "--run.dir", "x")


def test_several_processes_name_their_directory_and_process_0_alone_looks_whether_it_is_taken(
    write_yaml, tmp_path, refuse
):
    flags = ["--distributed.detect"]
    assert "run.dir must be given for several processes" in refuse(write_yaml(), *flags)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.yaml").touch()
    assert parse([write_yaml(), *flags, "--run.dir", str(tmp_path / "taken")]).config.distributed.detect


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["configs/llama3_8b.yaml", "--nonsense", "--help"]])
def test_help_explains_every_key_with_the_value_of_the_chosen_file(argv, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(argv)
    said = capsys.readouterr()
    assert exit_.value.code == 0
    assert said.err == ""
    page = " ".join(re.sub("[│╭╰─╮╯]", " ", said.out).split())
    for path in keys():
        assert f"--{path} " in page, path
    assert "--dry-run, " in page
    assert "The order of the actions: a name from `jaxpipe schedule list`, or the path of a CSV file" in page
    hidden_size = 4096 if len(argv) > 1 else 128
    assert f"--model.hidden_size INT Width of the residual stream. (default: {hidden_size})" in page


def test_the_forms_that_help_shows_are_read(write_yaml):
    for path, key in keys().items():
        forms = {"None": None} if type(None) in get_args(key.hint) else {}
        if key.hint is bool and path != "checkpoint.resume":
            forms = {"True": True, "False": False}
        for word, value in forms.items():
            needed = {
                "pipeline.reverse_backward": "--pipeline.schedule=gpipe",
                "checkpoint.keep_best": "--train.eval_every=1",
            }.get(path, "--mesh.tp=2")
            config = parse([write_yaml(), f"--{path}", word, needed, "--dry-run"]).config
            assert path == "run.dir" or flatten(config)[path] is value


def test_help_with_a_broken_file_tells_its_faults(tmp_path, refuse):
    assert "there is no file" in refuse(str(tmp_path / "none.yaml"), "--help")


def test_every_key_has_a_docstring_of_its_own():
    """tyro takes the text after a field; the help test above cannot see one that is missing."""
    tree = ast.parse((ROOT / "jaxpipe/config/sections.py").read_text())
    for section in tree.body:
        if isinstance(section, ast.ClassDef) and section.name != "Config":
            fields = [item for item in section.body if isinstance(item, ast.AnnAssign)]
            texts = [item for item in section.body if isinstance(item, ast.Expr)]
            assert len(texts) == 1 + len(fields), section.name


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_neither_the_configuration_nor_the_data_loads_jax():
    code = (
        "import sys, jaxpipe.config, jaxpipe.data\n"
        "jaxpipe.config.parse(['configs/tiny.yaml', '--dry-run'])\n"
        "jaxpipe.data.load_corpus('train.py')\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('jax', 'jaxlib', 'grain')])"
    )
    done = run("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_the_command_ends_with_2_before_jax_starts():
    done = run("-X", "importtime", "train.py", "configs/tiny.yaml", "--train.num_steps", "many", "--bad")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "2 faults in the configuration" in done.stderr
    assert "| jax\n" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_was_copied_asks_which_one_is_meant(tmp_path, refuse, write_yaml):
    first, copy = tmp_path / "first", tmp_path / "copy"
    for directory in (first, copy):
        directory.mkdir()
        (directory / "metrics.jsonl").touch()
        (directory / "config.yaml").write_text(Path(write_yaml({"run.dir": str(first)})).read_text())
    message = refuse(str(copy / "config.yaml"), "--checkpoint.resume")
    assert f"give --run.dir {copy} to resume the run here, or --run.dir {first}" in message
    first.rename(tmp_path / "moved")
    message = refuse(str(tmp_path / "moved" / "config.yaml"), "--checkpoint.resume")
    assert f"give --run.dir {tmp_path / 'moved'} to resume the run here" in message
    (tmp_path / "moved").rename(first)
    for arguments in ([str(first / "config.yaml")], [str(copy / "config.yaml"), "--run.dir", str(copy)]):
        assert parse([*arguments, "--checkpoint.resume"]).config.run.dir == arguments[-1].removesuffix(
            "/config.yaml"
        )
