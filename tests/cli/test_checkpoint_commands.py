"""``jaxpipe checkpoint``: what is there, whether it is whole, how two differ, and the arrays for NumPy."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.checkpoint.checkpoints import open_checkpoints
from jaxpipe.cli import main


def make_arrays(seed: int) -> dict:
    random = np.random.default_rng(seed)
    return {
        "params": {
            "embedding": jnp.asarray(random.normal(size=(50, 6)), jnp.float32),
            "layers": {"query": jnp.asarray(random.normal(size=(8, 30, 64)), jnp.float32)},
        },
        "mu": {"embedding": jnp.asarray(random.normal(size=(50, 6)), jnp.bfloat16)},
        "count": jnp.int32(seed),
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A run with checkpoints 5, 10 and 20, of which 10 is the best."""
    directory = tmp_path_factory.mktemp("runs") / "first"
    with open_checkpoints(directory / "checkpoints", keep=3) as checkpoints:
        for step, loss in [(5, None), (10, 1.25), (20, 1.5)]:
            checkpoints.save(step, make_arrays(step), {"data": step}, validation_loss=loss)
    return directory


@pytest.fixture
def run_directory(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "first"))


@pytest.fixture
def say(capsys):
    def run(*argv: object) -> tuple[int, str, str]:
        code = main(["checkpoint", *map(str, argv)])
        return code, *capsys.readouterr()

    return run


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def largest_file(folder: Path) -> Path:
    return max((p for p in (folder / "arrays").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def test_ls_shows_each_with_its_loss_and_what_is_wrong(run_directory: Path, say):
    checkpoints = run_directory / "checkpoints"
    (checkpoints / "30").mkdir()
    (checkpoints / "8.damaged").mkdir()
    (checkpoints / "40.unfinished").mkdir()
    largest_file(checkpoints / "5").write_bytes(b"")
    code, out, err = say("ls", run_directory)
    assert (code, err) == (0, "")
    header, *lines, others = out.splitlines()
    assert header.split() == ["step", "saved", "(UTC)", "size", "validation", "loss"]
    assert [line.split()[0] for line in lines] == ["5", "10", "20", "30"]
    assert "damaged: arrays/" in lines[0]
    assert "has 0 bytes of" in lines[0]
    assert lines[1].endswith("1.2500  best")
    assert lines[2].endswith("1.5000")
    assert lines[3].split(maxsplit=1)[1] == "damaged: it has no manifest.json"
    assert others == "no checkpoints: 40.unfinished, 8.damaged"
    assert say("ls", checkpoints)[1] == out


def test_ls_as_json_can_be_read_by_a_program(run_directory: Path, say):
    found = json.loads(say("ls", run_directory, "--format", "json")[1])
    assert [
        (it["step"], it["validation_loss"], it["best"], it["complete"]) for it in found["checkpoints"]
    ] == [
        (5, None, False, True),
        (10, 1.25, True, True),
        (20, 1.5, False, True),
    ]
    assert all(it["arrays"] == 4 and it["bytes"] > 8 * 30 * 64 * 4 for it in found["checkpoints"])


def test_ls_of_a_run_that_has_saved_nothing_says_so(tmp_path: Path, say):
    (tmp_path / "checkpoints").mkdir()
    code, out, _ = say("ls", tmp_path)
    assert code == 0
    assert "holds no checkpoint yet" in out


def test_ls_loads_no_jax(run_directory: Path):
    program = (
        "import sys; from jaxpipe.cli import main; "
        f"main(['checkpoint', 'ls', {str(run_directory)!r}]); sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


def test_verify_reads_all_of_a_run_or_one(run_directory: Path, say):
    code, out, err = say("verify", run_directory)
    assert (code, err) == (0, "")
    assert [line.split(": ")[1].split(",")[0] for line in out.splitlines()] == ["whole"] * 3
    assert "4 arrays" in out
    code, out, _ = say("verify", run_directory / "checkpoints" / "10")
    assert (code, len(out.splitlines())) == (0, 1)


def test_verify_finds_a_flipped_bit(run_directory: Path, say):
    flip(largest_file(run_directory / "checkpoints" / "10"))
    code, out, _ = say("verify", run_directory)
    assert code == 1
    five, ten, twenty = out.splitlines()
    assert "whole" in five
    assert "whole" in twenty
    assert "damaged: arrays/" in ten
    assert "holds other bytes than were written" in ten


def test_verify_finds_values_that_were_written_wrong(run_directory: Path, say):
    """The files have the hashes of their manifest, but the arrays are those of another step."""
    from jaxpipe.checkpoint.manifest import hash_files, read_manifest, write_manifest

    folder = run_directory / "checkpoints" / "10"
    shutil.rmtree(folder / "arrays")
    shutil.copytree(run_directory / "checkpoints" / "20" / "arrays", folder / "arrays")
    manifest = read_manifest(folder)
    (folder / "manifest.json").unlink()
    write_manifest(folder, manifest._replace(files=hash_files(folder)))
    code, out, _ = say("verify", folder)
    assert code == 1
    assert "the values of count are not those that were saved" in out


def test_equal_checkpoints_have_no_difference(run_directory: Path, say):
    code, out, _ = say("diff", run_directory, run_directory / "checkpoints" / "20")
    assert code == 0
    assert out.splitlines()[-1] == "4 of 4 arrays are equal to the bit"


def test_diff_tells_which_elements_rows_and_by_how_much(tmp_path: Path, say):
    arrays = make_arrays(1)
    changed = jax.tree.map(lambda x: x, arrays)
    query = np.array(arrays["params"]["layers"]["query"])
    query[2, 0, 0] += 0.5
    query[3, 1, 1] += 0.25
    query[6, 5, 5] = -query[6, 5, 5]
    query[6, 5, 5] += 0.0
    changed["params"]["layers"]["query"] = jnp.asarray(query)
    changed["more"] = jnp.zeros(3)
    for name, it in [("one", arrays), ("other", changed)]:
        with open_checkpoints(tmp_path / name / "checkpoints", keep=1) as checkpoints:
            checkpoints.save(1, it, {})
    code, out, _ = say("diff", tmp_path / "one", tmp_path / "other")
    assert code == 1
    assert "more: absent in the one, float32[3] in the other" in out
    row = next(line.split() for line in out.splitlines() if line.startswith("params.layers.query"))
    difference = np.abs(query - np.asarray(arrays["params"]["layers"]["query"])).max()
    assert row[1:3] == ["3", str(8 * 30 * 64)]
    assert float(row[3]) == pytest.approx(difference, rel=1e-2)
    assert float(row[4]) == pytest.approx(difference / np.abs(query).max(), rel=1e-2)
    assert row[5:] == ["2-3", "6"]
    assert out.splitlines()[-1] == "3 of 5 arrays are equal to the bit"


def test_export_is_read_by_numpy_alone_to_the_bit(run_directory: Path, tmp_path: Path, say):
    code, out, _ = say("export", run_directory / "checkpoints" / "10", "-o", tmp_path / "ten.npz")
    assert code == 0
    assert "2 arrays of step 10" in out
    with np.load(tmp_path / "ten.npz", allow_pickle=False) as file:
        assert sorted(file.files) == ["manifest.json", "params.embedding", "params.layers.query"]
        assert json.loads(file["manifest.json"])["info"] == {"data": 10}
        query = np.asarray(make_arrays(10)["params"]["layers"]["query"])
        np.testing.assert_array_equal(file["params.layers.query"], query)
    say("export", run_directory, "-o", tmp_path / "all.npz", "--optimizer")
    with np.load(tmp_path / "all.npz") as file:
        assert file["count"] == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.npz", "first", "ten.npz"]


def test_export_refuses_what_is_damaged_and_writes_nothing(run_directory: Path, tmp_path: Path, say):
    flip(largest_file(run_directory / "checkpoints" / "20"))
    code, _, err = say("export", run_directory, "-o", tmp_path / "it.npz")
    assert code == 2
    assert "must be whole, but arrays/" in err
    assert not (tmp_path / "it.npz").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("ls", "nowhere"), "there is no 'nowhere'"),
        (("ls", "{run}", "--format", "xml"), "--format 'xml' must be one of text, json"),
        (("verify", "{run}/checkpoints/7"), "there is no"),
        (("diff", "{run}", "nowhere"), "there is no 'nowhere'"),
        (("diff", "{run}", "{run}/checkpoints/30"), "must be complete, but it has no manifest.json"),
        (("export", "{run}", "-o", "it.zip"), "must end with .npz"),
        (("export", "{run}", "-o", "no/such/it.npz"), "must lie in a folder that exists"),
        (("ls", "{run}/config.yaml"), "holds no checkpoints"),
        (("ls", ""), "there is no ''"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_answered_is_one_sentence_with_code_2(run_directory: Path, say, argv, words):
    (run_directory / "checkpoints" / "30").mkdir()
    (run_directory / "config.yaml").write_text("")
    code, out, err = say(*(word.format(run=run_directory) for word in argv))
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_relative_paths_do_as_the_readme_has_them(run_directory: Path, say, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert say("verify", "first")[0] == 0
    assert say("verify", "./first/checkpoints/10")[0] == 0
    assert say("diff", "first", "first/checkpoints/20")[0] == 0
    assert say("export", "first", "-o", "first.npz")[0] == 0
    monkeypatch.chdir("first/checkpoints/20")
    assert say("verify", ".")[1].count("whole") == 1
    assert say("diff", ".", "../20")[0] == 0


def test_ls_of_one_checkpoint_shows_that_one(run_directory: Path, say):
    lines = say("ls", run_directory / "checkpoints" / "10")[1].splitlines()
    assert [line.split()[0] for line in lines] == ["step", "10"]


def test_diff_refuses_what_is_damaged(run_directory: Path, say):
    flip(largest_file(run_directory / "checkpoints" / "10"))
    code, out, err = say("diff", run_directory, run_directory / "checkpoints" / "10")
    assert (code, out) == (2, "")
    assert "must be whole, but arrays/" in err


def test_runs_whose_names_are_numbers_are_no_checkpoints(run_directory: Path, tmp_path: Path, say):
    for name in ("6", "7"):
        shutil.copytree(run_directory, tmp_path / name)
    assert say("diff", tmp_path / "6", tmp_path / "7")[0] == 0
    assert say("verify", tmp_path / "6")[1].count("whole") == 3
    assert "holds no checkpoints" in say("ls", tmp_path)[2]


def test_verify_of_a_run_that_deletes_a_checkpoint_meanwhile_goes_on(run_directory: Path, say, monkeypatch):
    from jaxpipe.checkpoint import leaves

    examine_leaf = leaves.examine_leaf

    def and_delete(folder: Path, *arguments):
        if folder.name == "10":
            shutil.rmtree(folder)
        return examine_leaf(folder, *arguments)

    monkeypatch.setattr(leaves, "examine_leaf", and_delete)
    code, out, _ = say("verify", run_directory)
    assert code == 0
    assert [line.split(": ")[1].split(",")[0] for line in out.splitlines()] == [
        "whole",
        "deleted while it was read",
        "whole",
    ]


def test_verify_of_a_checkpoint_that_cannot_be_read_looks_at_the_others(run_directory: Path, say):
    manifest = run_directory / "checkpoints" / "10" / "manifest.json"
    manifest.unlink()
    manifest.mkdir()
    code, out, _ = say("verify", run_directory)
    assert code == 1
    assert "cannot be read: Is a directory" in out
    assert out.count("whole") == 2
    assert say("ls", run_directory)[1].count("damaged") == 1


def test_a_name_that_is_too_long_is_one_short_sentence(say):
    code, out, err = say("ls", "x" * 5000)
    assert (code, out) == (2, "")
    assert len(err) < 300
