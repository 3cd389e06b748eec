"""What W&B gets of a file that grows, and of a run that goes on: each step as one row, once."""

import threading
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.curves.wandb_sender import follow, send

RECORDS = [
    {"step": 0, "eval_loss": 6.0},
    {"step": 1, "loss": 5.0},
    {"step": 2, "loss": 4.0},
    {"step": 2, "eval_loss": 4.5},
    {"step": 3, "loss": 3.0},
    {"step": 4, "loss": "NaN"},
    {"step": 4, "eval_loss": 3.5},
    {"final": True, "step": 4, "params_sha256": "00"},
]
ROWS = [
    (0, {"eval_loss": 6.0}),
    (1, {"loss": 5.0}),
    (2, {"loss": 4.0, "eval_loss": 4.5}),
    (3, {"loss": 3.0}),
    (4, {"loss": pytest.approx(float("nan"), nan_ok=True), "eval_loss": 3.5}),
]


class Server:
    """W&B's side of a run; ``step`` is the next one it takes."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.step = 0
        self.summary: dict[str, Any] = {}

    def log(self, values: dict[str, float], *, step: int) -> None:
        assert step >= self.step
        self.rows.append((step, dict(values)))
        self.step = step + 1


def after_even(step: int) -> bool:
    return step % 2 == 0


@pytest.mark.parametrize("killed_after", range(len(RECORDS) + 1))
def test_wherever_a_run_is_killed_and_resumed_no_row_is_lost_or_half(killed_after: int) -> None:
    logged, rest = RECORDS[:killed_after], {record["step"] for record in RECORDS[killed_after:]}
    saved = sorted(
        {record["step"] for record in logged} - rest
    )  # a checkpoint comes after all lines of its step
    for resumed_from in [-1, *saved]:
        server = Server()
        assert send(server, iter(logged), after_even) == (logged == RECORDS)
        kept = [record for record in logged if record["step"] <= resumed_from and "final" not in record]
        again = [record for record in RECORDS if record["step"] > resumed_from or "final" in record]
        assert send(server, iter(kept + again), after_even)
        assert server.rows == ROWS
        assert server.summary == {"params_sha256": "00"}


def test_an_evaluation_that_was_cut_short_is_not_lost_when_it_is_made_later() -> None:
    server = Server()
    stopped = [*RECORDS[:3], {"final": True, "step": 2, "params_sha256": "11"}]
    assert send(server, iter(stopped), after_even)
    assert server.rows == ROWS[:2]
    assert send(server, iter(RECORDS), after_even)
    assert server.rows == ROWS


def test_lines_are_read_as_they_come_and_a_torn_one_when_it_is_whole(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("jaxpipe.curves.wandb_sender._LOOK_EVERY", 0.0)
    path, is_over = tmp_path / "metrics.jsonl", threading.Event()
    path.write_text('{"step": 1}\n{"step"')
    records = follow(path, is_over)
    assert next(records) == {"step": 1}
    with path.open("a") as file:
        file.write(': 2}\n{"step": 3}\n{"st')
    is_over.set()
    assert list(records) == [{"step": 2}, {"step": 3}]
