"""Figures in the documentation are what the code gives: each follows a comment that names it.

<!-- figure: ticks -->
```text
...
```
"""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from docs import recipes_page
from jaxpipe.cli import main
from jaxpipe.lowering import TickTable, lower
from jaxpipe.lowering.replay import replay
from jaxpipe.lowering.table import NONE
from jaxpipe.schedules import Schedule, assign_ticks, build, order_grid, split_backward

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
WORKED_EXAMPLE = ROOT / "docs" / "how-a-schedule-becomes-ticks.md"

EXAMPLE = build("1f1b", num_ranks=2, num_microbatches=3)


def figures(path: Path) -> dict[str, str]:
    pattern = r"<!-- figure: ([\w ]+) -->\n```text\n(.*?)\n```"
    return dict(re.findall(pattern, path.read_text(encoding="utf-8"), flags=re.DOTALL))


def cells(values: list[str]) -> str:
    return "".join(f"{value:>5}" for value in values).rstrip()


def tick_grid(schedule: Schedule) -> str:
    """One column a tick."""
    at = {
        (schedule.placement.rank(action.stage), tick): str(action)
        for action, tick in assign_ticks(schedule).items()
    }
    ticks = range(max(tick for _, tick in at) + 1)
    lines = ["tick   " + cells([str(tick) for tick in ticks])]
    for rank in range(schedule.num_ranks):
        lines.append(f"rank {rank} " + cells([at.get((rank, tick), ".") for tick in ticks]))
    return "\n".join(lines)


def residual_lifetimes(schedule: Schedule, table: TickTable, *, rank: int) -> str:
    """When each residual of a rank is written and read, and where it lies."""
    ticks = {str(action): tick for action, tick in assign_ticks(schedule).items()}
    lines = ["microbatch  written  read  slot"]
    for microbatch in range(schedule.num_microbatches):
        written, read = ticks[f"{rank}F{microbatch}"], ticks[f"{rank}B{microbatch}"]
        slot = int(table.ranks.residual_slot[written, rank])
        lines.append(f"{microbatch:<10}  {written:<7}  {read:<4}  {slot}")
    return "\n".join(lines)


def rank_rows(table: TickTable, rank: int) -> str:
    """A rank's columns of the table, one line each; a dot where a cell means nothing."""
    kinds = np.array(["idle", "F", "B", "W", "BW"])[table.ranks.kind[:, rank]].tolist()
    idle = table.ranks.kind[:, rank] == 0
    nothing = {
        "inbox_read": table.num_inbox_slots,
        "residual_slot": table.num_residual_slots,
        "input_slot": table.num_input_slots,
        "weight_slot": table.num_weight_slots,
        "from_below": table.num_inbox_slots,
        "from_above": table.num_inbox_slots,
    }
    lines = [f"{'tick':13}" + cells([str(tick) for tick in range(table.num_ticks)])]
    lines.append(f"{'kind':13}" + cells(kinds))
    microbatches = np.where(idle, NONE, table.ranks.microbatch[:, rank])
    lines.append(f"{'microbatch':13}" + dotted(microbatches, NONE))
    for name, trash in nothing.items():
        lines.append(f"{name:13}" + dotted(getattr(table.ranks, name)[:, rank], trash))
    return "\n".join(lines)


def end_rows(table: TickTable) -> str:
    nothing = {
        "embed": NONE,
        "embed_slot": table.num_inbox_slots,
        "head": NONE,
        "head_slot": table.num_inbox_slots,
        "unembed": NONE,
    }
    lines = [f"{'tick':13}" + cells([str(tick) for tick in range(table.num_ticks)])]
    lines += [f"{name:13}" + dotted(getattr(table.ends, name)[:, 0], none) for name, none in nothing.items()]
    return "\n".join(lines)


def dotted(column: np.ndarray, nothing: int) -> str:
    return cells(["." if cell == nothing else str(cell) for cell in column.tolist()])


def expected_figures() -> dict[str, str]:
    schedule, table = split_backward(EXAMPLE), lower(EXAMPLE)
    replay(table, EXAMPLE)
    return {
        "order": order_grid(EXAMPLE),
        "ticks": tick_grid(schedule),
        "residuals of rank 0": residual_lifetimes(schedule, table, rank=0),
        "rank 0": rank_rows(table, 0),
        "rank 1": rank_rows(table, 1),
        "ends": end_rows(table),
    }


def test_the_worked_example_shows_what_lowering_gives() -> None:
    found = figures(WORKED_EXAMPLE)
    expected = expected_figures()
    assert set(found) == set(expected)
    for name, text in expected.items():
        assert found[name] == text, f"figure {name!r} should be\n{text}"


def test_the_readme_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "show", "zb_h1", "--ranks", "4", "--microbatches", "8"]) == 0
    assert figures(README)["zb_h1"] == capsys.readouterr().out.rstrip("\n")


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda path: path.name
)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    for target in targets:
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_page_on_schedules_is_what_the_code_gives(tmp_path: Path) -> None:
    """``make docs`` writes it anew."""
    subprocess.run([sys.executable, ROOT / "docs" / "schedules_page.py", tmp_path], check=True, timeout=120)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    written = {path.relative_to(tmp_path): path.read_bytes() for path in files}
    pictures = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs" / "schedules").iterdir()}
    assert set(written) == {Path("schedules.md")} | pictures
    for path, content in written.items():
        assert (ROOT / "docs" / path).read_bytes() == content, f"{path} is out of date: make docs"


def test_the_configuration_page_is_what_the_code_gives(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "docs" / "configuration_page.py", tmp_path], check=True, timeout=60
    )
    written = (tmp_path / "configuration.md").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == written, (
        "out of date: make docs"
    )


def test_the_recipes_show_what_a_dry_run_prints() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert recipes_page.with_figures(page) == page, "out of date: make docs"


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Of links that lead nowhere, among others; pages outside docs/ that are linked to are part of it."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert "configs/llama3_1b.yaml.txt" in (tmp_path / "site" / "recipes" / "index.html").read_text()
    assert (tmp_path / "site" / "files" / "configs" / "llama3_1b.yaml.txt").exists()
