"""One redrawn line on a terminal, plain lines elsewhere, nothing where it is not wanted."""

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from jaxpipe.training.progress import make_console, open_progress, show_facts, show_message, show_step

FACTS = [("mesh", "dp=2 pp=4 tp=1"), ("schedule", "1f1b [split], 8 microbatches, " + "bubble 27.3 %, " * 6)]
STEPS = [
    (1, {"loss": 5.6, "learning_rate": 1e-4, "tokens_per_second": 1234.4, "step_seconds": 0.5}),
    (120, {"loss": float("nan"), "learning_rate": 3e-4, "tokens_per_second": 1.2e7, "step_seconds": 9e4}),
]


def shown(*, terminal: bool, width: int = 80) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, highlight=False, markup=False)
    show_facts(console, "jaxpipe", FACTS)
    with open_progress(console, 200) as line:
        for step, values in STEPS:
            show_step(line, step, **values)
            show_message(line, f"step {step} eval_loss 5.5")
    return file.getvalue()


def test_without_a_terminal_each_step_is_a_plain_line():
    text = shown(terminal=False)
    assert re.fullmatch(r"[\x20-\x7e\n]*", text)
    assert text.splitlines() == [
        "mesh      dp=2 pp=4 tp=1",
        f"schedule  {FACTS[1][1]}",
        "step 1/200  loss 5.6000  1,234 tokens/s  lr 1.0e-04  eta 0:01:40",
        "step 1 eval_loss 5.5",
        "step 120/200  loss nan  12,000,000 tokens/s  lr 3.0e-04  eta 83 days, 8:00:00",
        "step 120 eval_loss 5.5",
    ]


@pytest.mark.parametrize("width", [40, 80, 132])
def test_on_a_terminal_no_line_is_wider_than_it(width: int):
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(terminal=True, width=width))
    drawn = [line for part in text.split("\n") for line in part.split("\r")]
    assert max(map(cell_len, drawn)) == width
    assert any("step 1 eval_loss 5.5" in line for line in drawn)


def test_eighty_columns_show_the_bar_and_the_whole_line():
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(terminal=True))
    assert "━ step 1/200  loss 5.6000  1,234 tokens/s  lr 1.0e-04  eta 0:01:40" in text
    assert "step 120/200  loss nan  12,000,000 tokens/s  lr 3.0e-04  eta 83 days" in text


def test_facts_are_shown_as_they_are():
    text = shown(terminal=True, width=132)
    assert "1f1b [split], 8 microbatches" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_a_disabled_process_prints_nothing_and_lets_others_print(
    capsys: pytest.CaptureFixture[str], monkeypatch, terminal: bool
):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    console = make_console(enabled=False)
    show_facts(console, "jaxpipe", FACTS)
    with open_progress(console, 200) as line:
        show_step(line, 1, **STEPS[0][1])
        show_message(line, "evaluated")
        print("a warning of someone else")
    assert capsys.readouterr() == ("a warning of someone else\n", "")


def test_an_enabled_process_prints_to_stdout(capsys: pytest.CaptureFixture[str], monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    console = make_console()
    with open_progress(console, 200) as line:
        show_step(line, 1, **STEPS[0][1])
        show_message(line, "shape [8, 16] and [bold]")
    out, err = capsys.readouterr()
    assert out == (
        "step 1/200  loss 5.6000  1,234 tokens/s  lr 1.0e-04  eta 0:01:40\nshape [8, 16] and [bold]\n"
    )
    assert err == ""
