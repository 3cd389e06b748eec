"""The benchmark's arithmetic: turns, ratios, verdicts and the picture. What it times is not timed here."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import bench
from benchmarks.criteria import misses
from benchmarks.own_process import PartError, in_own_process
from benchmarks.picture import draw
from benchmarks.plots import spread_out
from benchmarks.timing import ratios, spread, time_in_turn

ROOT = Path(__file__).parents[2]

KEYS = {
    "part",
    "schedule",
    "ranks",
    "chunks",
    "layers",
    "microbatches",
    "held",
    "compile_seconds",
    "compile_ratio",
    "temp_bytes_per_device",
    "step_seconds",
    "step_seconds_min",
    "step_seconds_max",
    "tokens_per_second",
    "ratio_to_unpipelined",
    "ratio_min",
    "ratio_max",
    "ratio_to_1f1b",
    "num_ticks",
    "fuse_backward",
}


def row(schedule: str, microbatches: int, **changes: Any) -> dict[str, Any]:
    good = {
        "part": "steps",
        "ranks": 4,
        "chunks": 1,
        "layers": 8,
        "remat": "full",
        "fuse_backward": True,
        "transfer_ticks": 1,
        "held": microbatches if schedule == "gpipe" else 4,
        "compile_seconds": 4.0,
        "compile_ratio": 1.6,
        "temp_bytes_per_device": 25_000_000,
        "ratio_to_unpipelined": 0.8,
        "ratio_min": 0.7,
        "ratio_max": 0.9,
        "ratio_to_pytorch": 0.8,
        "ratio_to_pytorch_min": 0.75,
        "ratio_to_pytorch_max": 0.85,
    }
    return {"schedule": schedule, "microbatches": microbatches} | good | changes


def one_rank(**changes: Any) -> dict[str, Any]:
    return row("1f1b", 8, part="one_rank", ranks=1, ratio_to_plain=1.01) | changes


def good_rows() -> dict[Any, dict[str, Any]]:
    rows: dict[Any, dict[str, Any]] = {
        (s, m): row(s, m) for s in ("gpipe", "1f1b", "zb_h1") for m in (4, 8, 16, 64)
    }
    rows["one rank"] = one_rank()
    rows["PyTorch"] = {"part": "steps", "schedule": "PyTorch 1F1B", "microbatches": 8, "remat": "full"}
    rows["PyTorch"] |= {f"ratio_to_pytorch{end}": 1.0 for end in ("", "_min", "_max")}
    rows["hidden"] = row("1f1b", 8, transfer_ticks=2, ratio_to_pytorch=1.2)
    rows["segments"] = row("1f1b", 8, program="segments", ratio_to_pytorch=1.2, compile_ratio=4.0)
    return rows


def test_steps_take_turns_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []
    seconds = time_in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert "".join(calls) == "ba" + "ab" + "ba" + "ab"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_taken_round_by_round() -> None:
    # the median of the ratios, where the ratio of the medians would be 2 / 2
    assert ratios([2.0, 1.0, 8.0], [1.0, 2.0, 2.0]) == spread([2.0, 0.5, 4.0]) == (2.0, 0.5, 4.0)


def test_good_figures_miss_nothing() -> None:
    assert list(misses(list(good_rows().values()))) == []


@pytest.mark.parametrize(
    ("at", "change", "named"),
    [
        (("gpipe", 64), {"compile_seconds": 6.1}, "compile_seconds at m=64"),
        (("gpipe", 16), {"compile_ratio": 2.1}, "compile_ratio must be at most 2.0"),
        (("1f1b", 64), {"temp_bytes_per_device": 26_500_000}, "temp_bytes_per_device at m=64"),
        (("zb_h1", 64), {"temp_bytes_per_device": 26_500_000}, "temp_bytes_per_device at m=64"),
        (("1f1b", 8), {"ratio_to_pytorch": 0.86}, "m=8, remat full: ratio_to_pytorch"),
        (("1f1b", 8), {"ratio_to_pytorch": 0.86, "remat": "none"}, "m=8, remat none: ratio_to_pytorch"),
        (("zb_h1", 16), {"ratio_to_pytorch": 1.01}, "m=16"),
        (("1f1b", 8), {"ratio_to_unpipelined": 0.91}, "ratio_to_unpipelined"),
        ("one rank", {"ratio_to_plain": 1.03}, "p=1"),
    ],
)
def test_each_figure_can_be_missed(at: Any, change: dict[str, Any], named: str) -> None:
    rows = good_rows()
    rows[at] |= change
    (sentence,) = misses(list(rows.values()))
    assert sentence.startswith(rows[at]["schedule"])
    assert named in sentence


def test_gpipe_may_hold_more_with_more_microbatches() -> None:
    rows = good_rows()
    rows["gpipe", 64]["temp_bytes_per_device"] *= 5
    assert list(misses(list(rows.values()))) == []


def test_what_was_not_measured_is_not_judged() -> None:
    slow = row("1f1b", 4, ratio_to_unpipelined=3.0, ratio_to_pytorch=3.0)
    without_torch = {key: value for key, value in row("zb_h1", 16).items() if "pytorch" not in key}
    assert list(misses([slow, without_torch])) == []


@pytest.mark.parametrize(
    "rows",
    [list(good_rows().values()), [row("1f1b", 8)], [one_rank()]],
    ids=["all", "one", "no step on several ranks"],
)
def test_the_picture_is_xml_with_every_schedule_in_it(rows: list[dict[str, Any]]) -> None:
    texts = [element.text for element in ElementTree.fromstring(draw(rows)).iter() if element.text]
    assert {entry["schedule"] for entry in rows if entry["part"] == "steps"} <= set(texts)


def test_the_picture_follows_m_p_and_v() -> None:
    m = [row("1f1b", m) for m in (4, 64)]
    p = [row("zb_v", 16, ranks=p, chunks=2, layers=16, part="sizes") for p in (2, 4, 8)]
    v = [row("interleaved", 16, chunks=v, layers=16, part="sizes") for v in (2, 4)]
    text = draw(m + p + v)
    for axis in ("microbatches (m)", "ranks (p)", "chunks of a rank (v"):
        assert text.count(axis) == 2  # bytes and seconds


def test_labels_move_apart_and_stay_above_the_end() -> None:
    assert spread_out([0, 1, 50], gap=10, most=100) == [0, 10, 50]
    assert spread_out([80, 95, 98], gap=10, most=100) == [80, 90, 100]


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_benchmark_prints_a_line_with_every_figure(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    schedules = ("--schedules", "1f1b", "dualpipe", "--remat", "full")
    few = ("--parts", "steps", "--microbatches", "4", "--rounds", "1", "--no-torch", "--json", str(path))
    run = benchmark(*schedules, *few)
    assert run.returncode == 0, run.stderr
    assert "left out: dualpipe, p=4, m=4" in run.stderr
    lines = run.stdout.splitlines()
    assert path.read_text().splitlines() == lines
    figures, hidden, segments = map(json.loads, lines)
    assert set(figures) >= KEYS
    assert figures["step_seconds_min"] <= figures["step_seconds"] <= figures["step_seconds_max"]
    assert figures["num_ticks"] == 15
    assert (hidden["transfer_ticks"], hidden["num_ticks"]) == (2, 25)
    assert (segments["program"], segments["num_ticks"]) == ("segments", 15)
    assert segments["compile_seconds"] > figures["compile_seconds"], "warm-up and drain are code of their own"


def test_without_pytorch_it_says_so_and_does_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "is_installed", lambda: False)
    monkeypatch.setattr(bench, "measure", lambda options: iter([row("1f1b", 8, torch=options.torch)]))
    assert bench.main([]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["torch"] is False
    assert "make setup-dev" in printed.err


def test_check_fails_with_what_was_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "measure", lambda _: iter([one_rank(ratio_to_plain=1.5)]))
    assert bench.main(["--no-torch"]) == 0
    assert bench.main(["--no-torch", "--check"]) == 1
    assert "ratio_to_plain must be at most 1.02, but is 1.500" in capsys.readouterr().err


def test_rows_come_from_a_process_of_their_own_that_may_fail() -> None:
    rows = in_own_process(devices_then_failure, "told", num_devices=3)
    assert next(rows) == {"told": "told", "devices": 3}
    with pytest.raises(PartError, match="devices_then_failure ended with code 1"):
        next(rows)


def devices_then_failure(told: str) -> Iterator[dict[str, Any]]:
    import jax

    yield {"told": told, "devices": jax.device_count()}
    raise RuntimeError("the test's own")


def test_an_unknown_schedule_is_refused() -> None:
    run = benchmark("--schedules", "1f1b", "zbh1")
    assert run.returncode == 2
    assert "zbh1" in run.stderr
    assert "Traceback" not in run.stderr


def test_plain_accumulation_gives_the_gradients_of_the_reference() -> None:
    import jax
    import numpy as np

    from benchmarks.plain import accumulation
    from benchmarks.programs import random_text
    from jaxpipe.models.llama_config import LlamaConfig
    from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
    from jaxpipe.pipeline import Batch
    from jaxpipe.training.reference import reference_loss_and_gradients

    model = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    text = random_text(3, 2, sequence_length=8, vocab_size=40)
    batch, contract = Batch(text[..., :-1], text[..., 1:], {}), llama_contract(model, "einsum")
    arguments = (init_llama(model, 0), batch, llama_constants(model, 8))
    ours = jax.jit(accumulation(contract, recompute=True))(*arguments)
    expected = jax.jit(partial(reference_loss_and_gradients, contract))(*arguments)
    # fp32 on both sides, sums in another order; the largest gradient is of the order of 0.1
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6, rtol=1e-5), ours, expected)
