"""``jaxpipe plot``: what the picture shows, and what it refuses."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from jaxpipe.cli import main

PNG = b"\x89PNG\r\n\x1a\n"


def make_run(directory: Path, *, steps: range = range(1, 60), **more: float | str) -> Path:
    """A run whose curves are straight lines, and which is just writing a line."""
    directory.mkdir(parents=True)
    lines = []
    for step in steps:
        line = {
            "step": step,
            "loss": 6 - step / 20,
            "grad_norm": 1 + step / 100,
            "learning_rate": step * 1e-4,
        }
        lines.append(line | {"tokens_per_second": 1e4 + step} | more)
        if step % 10 == 0:
            lines.append({"step": step, "eval_loss": 6.5 - step / 20})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "metrics.jsonl").write_text(text + '{"step": 60, "lo')
    return directory


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["plot", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.splitlines()


def svg_of(tmp_path: Path, *arguments: str) -> str:
    assert main(["plot", *arguments, "-o", str(tmp_path / "curves.svg")]) == 0
    text = (tmp_path / "curves.svg").read_text()
    ET.fromstring(text)
    return text


def texts_of(svg: str) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


def test_one_run_is_drawn_into_its_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "first")
    assert main(["plot", str(run)]) == 0
    assert (run / "curves.png").read_bytes().startswith(PNG)
    assert capsys.readouterr().out == f"{run / 'curves.png'}: first\n"
    assert sorted(path.name for path in run.iterdir()) == ["curves.png", "metrics.jsonl"]


def test_there_is_a_panel_for_each_kind_of_number_with_its_unit(tmp_path: Path) -> None:
    texts = texts_of(svg_of(tmp_path, str(make_run(tmp_path / "first"))))
    for text in ("first", "Loss", "nats per token", "training", "validation", "Learning rate", "Throughput"):
        assert texts.count(text) == 1, text
    assert "Gradient norm, before clipping" in texts
    assert texts.count("step") == 4
    assert "Model FLOPs utilization" not in texts
    assert "Model FLOPs utilization" in texts_of(svg_of(tmp_path, str(make_run(tmp_path / "fast", mfu=0.4))))


def test_every_point_lies_where_its_value_says(tmp_path: Path) -> None:
    """The learning rate of step k is k times that of step 1: twenty points on a line that rises."""
    svg = svg_of(tmp_path, str(make_run(tmp_path / "first", steps=range(1, 21))))
    (panel,) = re.findall(r'<g id="axes_2">(.*?)<g id="axes_3">', svg, flags=re.DOTALL)
    found = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)" style="fill: #0072b2', panel)
    xs, ys = zip(*((float(x), float(y)) for x, y in found), strict=True)
    assert len(xs) == 20
    assert len({round(right - left, 3) for left, right in pairwise(xs)}) == 1
    assert len({round(below - above, 3) for below, above in pairwise(ys)}) == 1
    assert ys[0] > ys[1]  # in a picture y grows downwards


def test_several_runs_are_told_apart_by_as_much_of_their_paths_as_it_takes(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("a/run", "b/run", "c/other$1$")]
    texts = texts_of(svg_of(tmp_path, *map(str, runs)))
    assert {"a/run", "b/run", "c/other$1$"} <= set(texts)


def test_ten_runs_have_ten_looks_and_a_long_name_keeps_both_ends(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"{index}-{'long' * 30}-end{index}") for index in range(10)]
    svg = svg_of(tmp_path, *map(str, runs))
    names = [text for text in texts_of(svg) if "…" in text]
    assert len(set(names)) == 10
    assert all(re.match(r"(\d)-long.*-end\1$", name) and len(name) < 60 for name in names)
    legend = svg[svg.rindex('<g id="legend_') :]
    looks = re.findall(r'style="fill: none;( stroke-dasharray: [^;]+; [^;]+;)? stroke: (#\w+)', legend)
    assert len(set(looks)) == 10


def test_what_is_not_finite_is_marked_and_breaks_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('ss": 3}\n{"step": 61, "loss": "NaN", "grad_norm": "Infinity", "skipped": 1}\n')
    assert "not finite" in texts_of(svg_of(tmp_path, str(run)))


def test_a_panel_of_nothing_finite_says_so(tmp_path: Path) -> None:
    texts = texts_of(svg_of(tmp_path, str(make_run(tmp_path / "run", grad_norm="NaN"))))
    assert texts.count("no finite value") == 1
    assert "no value yet" not in texts


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e308, -1e308, 5e-324, 0.0])
def test_the_largest_and_the_smallest_floats_are_a_picture_without_a_warning(
    tmp_path: Path, value: float
) -> None:
    names = ("loss", "grad_norm", "learning_rate", "tokens_per_second")
    run = make_run(tmp_path / "run", **dict.fromkeys(names, value))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('ss": 3}\n' + json.dumps({"step": 61} | dict.fromkeys(names, 1.0)) + "\n")
    svg_of(tmp_path, str(run), "--smooth", "5")


@pytest.mark.filterwarnings("error")
def test_a_name_of_two_lines_and_foreign_letters_is_one_line_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / os.fsdecode("a\nb\t文".encode() + b"\xff"))
    assert "a b 文 " in texts_of(svg_of(tmp_path, str(run)))
    assert capsys.readouterr().out.endswith(": a b 文 \n")


def test_a_line_of_almost_equal_throughputs_stays_below_the_upper_edge(tmp_path: Path) -> None:
    svg = svg_of(tmp_path, str(make_run(tmp_path / "run")))
    (panel,) = re.findall(r'<g id="axes_4">(.*)', svg, flags=re.DOTALL)
    bottom, top = map(float, re.findall(r"M [\d.]+ ([\d.]+) \nL .*\nL .*\nL [\d.]+ ([\d.]+)", panel)[0])
    (line,) = re.findall(r'd="M ([^"]*)"[^>]*stroke: #0072b2', panel)
    heights = [float(words.split()[1]) for words in line.split("L")]
    assert top + 0.05 * (bottom - top) < min(heights) <= max(heights) < bottom  # they grow downwards


def test_a_norm_over_decades_has_a_logarithmic_axis(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('ss": 3}\n{"step": 61, "loss": 3.0, "grad_norm": 4000}\n')
    svg = svg_of(tmp_path, str(run))
    assert svg.count("<!-- $\\mathdefault{10^{") >= 3


def test_a_run_of_one_step_is_a_picture_too(tmp_path: Path) -> None:
    assert "no value yet" not in texts_of(svg_of(tmp_path, str(make_run(tmp_path / "a", steps=range(1, 2)))))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "metrics.jsonl").write_text('{"step": 0, "eval_loss": 5.6}\n')
    assert texts_of(svg_of(tmp_path, str(tmp_path / "b" / "metrics.jsonl"))).count("no value yet") == 3


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    run = str(make_run(tmp_path / "run"))
    assert svg_of(tmp_path, run, "--smooth", "5") == svg_of(tmp_path, run, "--smooth", "5")
    assert svg_of(tmp_path, run, "--smooth", "5") != svg_of(tmp_path, run)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, str(tmp_path / "no"), "a\0b", "--smooth", "0", "-o", str(tmp_path / "x.pdf"))
    assert [re.sub("'.*?'", "...", line) for line in said] == [
        "jaxpipe plot: --smooth ... must be a whole number from 1 to 1000000; 1 leaves out the means",
        "jaxpipe plot: ... holds no metrics.jsonl; name the directory of a run",
        "jaxpipe plot: ... holds no metrics.jsonl; name the directory of a run",
        "jaxpipe plot: -o ... must end with .png or .svg; name another file",
    ]


def test_two_runs_need_a_name_and_one_without_numbers_is_no_picture(tmp_path: Path, capsys) -> None:
    first, second = make_run(tmp_path / "first"), make_run(tmp_path / "second", steps=range(0))
    assert refused(capsys, str(first), str(second)) == [
        "jaxpipe plot: 2 runs are drawn into one picture, which needs a name; give -o curves.png"
    ]
    (said,) = refused(capsys, str(second))
    assert "metrics.jsonl holds no number yet; wait until the run has logged a step" in said
    (first / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    (said,) = refused(capsys, str(first))
    assert "line 2 is 'nonsense'" in said
    assert not (second / "curves.png").exists()


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("jaxpipe.cli.plot.find_spec", lambda name: None)
    (said,) = refused(capsys, str(make_run(tmp_path / "run")))
    assert said.endswith(
        "drawing needs matplotlib, which is not installed; pip install matplotlib (the extra plot)"
    )


def test_a_refusal_loads_neither_matplotlib_nor_jax(tmp_path: Path) -> None:
    program = (
        "import sys; from jaxpipe.cli import main\n"
        "assert main(['plot', 'nowhere']) == 2\n"
        "sys.exit('jax' in sys.modules or 'matplotlib' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.DEVNULL).returncode
        == 0
    )
