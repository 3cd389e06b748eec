"""Weights & Biases itself, offline: its files are read back, as the framed records that they are."""

import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxpipe.curves import wandb_process
from jaxpipe.curves.wandb_process import open_wandb

CONFIG = {"train": {"eval_every": 2, "num_steps": 4}}
RECORDS = [
    {"step": 0, "eval_loss": 6.0},
    *(
        {"step": 1, "loss": 5.3, "grad_norm": "NaN"},
        {"step": 2, "loss": 1 / 3},
        {"step": 2, "eval_loss": 4.5},
    ),
    *({"step": 3, "loss": 3e-30}, {"step": 4, "loss": 2.0}, {"step": 4, "eval_loss": 2.5}),
    {"final": True, "step": 4, "params_sha256": "00"},
]
ROWS = [
    (0, {"eval_loss": 6.0}),
    (1, {"loss": 5.3, "grad_norm": pytest.approx(float("nan"), nan_ok=True)}),
    (2, {"loss": 1 / 3, "eval_loss": 4.5}),
    (3, {"loss": 3e-30}),
    (4, {"loss": 2.0, "eval_loss": 2.5}),
]
BLOCK = 32768


def test_wandb_offline_has_each_step_once_and_its_values_to_the_bit(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("wandb")
    pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="this W&B has its records elsewhere")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb_process, "_PATIENCE", 60.0)
    metrics = tmp_path / "metrics.jsonl"
    # each start leaves a folder with all steps so far
    for records in (RECORDS[:4], RECORDS):
        metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
        with open_wandb(metrics, project="demo", config=CONFIG, is_stopped=lambda: False) as sender:
            pass
        assert sender.process.returncode == 0, sender.log.read_text()
        time.sleep(1)  # the folders are named by the second
    first, second = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))  # by time
    assert first.name == second.name  # the same run
    assert rows_of(first) == ROWS[:3]
    assert rows_of(second) == ROWS


def rows_of(path: Path) -> list[tuple[int, dict[str, float]]]:
    """The rows of a file of W&B's, in its order."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for payload in payloads_of(path.read_bytes()):
        record = Record.FromString(payload)
        if record.WhichOneof("record_type") == "history":
            items = {
                item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item
            }
            step = items.pop("_step")
            rows.append((step, {name: value for name, value in items.items() if not name.startswith("_")}))
    return rows


def payloads_of(content: bytes) -> Iterator[bytes]:
    """LevelDB's log: blocks of frames, each a CRC, a size and a kind, that of a last or only part 4 or 1."""
    if content[:4] != b":W&B":
        pytest.skip("this W&B has another form of file")
    at, whole = 7, b""
    while len(content) - at > 7:
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
        _, size, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield whole
            whole = b""


@pytest.mark.parametrize("is_stopped", [True, False])
def test_only_a_run_that_no_signal_ends_waits_for_wandb(
    tmp_path: Path, monkeypatch, is_stopped: bool
) -> None:
    slow = tmp_path / "python"
    slow.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import time; time.sleep(30)'\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(wandb_process, "_PATIENCE", 2.0)
    began = time.monotonic()
    with open_wandb(
        tmp_path / "metrics.jsonl", project="demo", config=CONFIG, is_stopped=lambda: is_stopped
    ) as sender:
        pass
    seconds = time.monotonic() - began
    sender.process.kill()
    sender.process.wait()
    assert seconds < 1.5 if is_stopped else seconds >= 2.0
