"""Writes the figures of docs/recipes.md anew (``make docs``): what ``--dry-run`` prints of each preset."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

_FIGURE = re.compile(
    r"(?P<head><!-- figure: dry run (?P<preset>\w+) -->\n```text\n)(?P<text>.*?)(?=\n```)", re.DOTALL
)


def with_figures(page: str) -> str:
    """The page with what the presets print now."""
    return _FIGURE.sub(lambda figure: figure["head"] + _dry_run(figure["preset"]), page)


def _dry_run(preset: str) -> str:
    """On emulated devices, whatever this machine has."""
    command = [sys.executable, "train.py", f"configs/llama3_{preset}.yaml", "--dry-run"]
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "COLUMNS")}
    finished = subprocess.run(
        command,
        cwd=ROOT,
        env=environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stdout.strip("\n")


if __name__ == "__main__":
    path = ROOT / "docs" / "recipes.md"
    path.write_text(with_figures(path.read_text(encoding="utf-8")), encoding="utf-8")
