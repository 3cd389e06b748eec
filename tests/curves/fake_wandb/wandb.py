"""Stands in for W&B's package: the server is the file named by FAKE_WANDB, one row a line.

Like the real one it numbers a resumed run on from the last row, takes no step below that, merges what is
logged of one step into one row, and sends a row when the next one begins or the run is finished.
FAKE_WANDB_FAILS makes ``init`` fail.
"""

import json
import os
from pathlib import Path
from typing import Any


class Settings:
    def __init__(self, **settings: Any) -> None:
        assert settings["console"] == "off"


class Run:
    def __init__(self, path: Path, words: dict[str, Any]) -> None:
        self.path, self.row = path, {}
        lines = path.read_text().splitlines() if path.exists() else []
        self.step = max((json.loads(line).get("_step", -1) for line in lines), default=-1) + 1
        self.summary: dict[str, Any] = {}
        self.send({"init": words})

    def send(self, row: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def log(self, values: dict[str, float], *, step: int) -> None:
        assert step >= self.step, "W&B would warn, and drop it"
        if step > self.step:
            self.commit()
        self.row |= values
        self.step = step

    def commit(self) -> None:
        if self.row:
            self.send({"_step": self.step, **self.row})
        self.row = {}

    def finish(self, exit_code: int) -> None:
        self.commit()
        self.send({"finish": exit_code, **self.summary})


def init(**words: Any) -> Run:
    if os.environ.get("FAKE_WANDB_FAILS"):
        raise RuntimeError("no network, says the fake")
    words = {name: value for name, value in words.items() if name not in ("settings", "dir")}
    return Run(Path(os.environ["FAKE_WANDB"]), words)
