"""Figures in the documentation are what the code gives: each follows a comment that names it.

<!-- figure: ticks -->
```text
...
```
"""

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.cli import main
from jaxpipe.lowering import TickTable, lower
from jaxpipe.lowering.replay import replay
from jaxpipe.lowering.table import BACKWARD, BACKWARD_WEIGHT, FORWARD, IDLE, NONE, WEIGHT
from jaxpipe.schedules import (
    Action,
    Kind,
    Schedule,
    assign_ticks,
    build,
    order_grid,
    simulate,
    split_backward,
)

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
WORKED_EXAMPLE = ROOT / "docs" / "how-a-schedule-becomes-ticks.md"

EXAMPLE = build("1f1b", num_ranks=2, num_microbatches=3)
LARGE = {name: build(name, num_ranks=4, num_microbatches=8) for name in ("1f1b", "zb_h1")}
"""Those of the pictures."""
MICROBATCH = 4
"""Whose way the pictures show."""


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


def sizes() -> str:
    header = ("schedule", "simulated", "ticks", "idle ticks a rank")
    header += ("inbox", "residuals", "linear inputs", "weight inputs")
    lines = ["  ".join(header)]
    for name, schedule in LARGE.items():
        table = lower(schedule)
        (idle,) = set((table.ranks.kind == 0).sum(axis=0).tolist())
        slots = (
            table.num_inbox_slots,
            table.num_residual_slots,
            table.num_input_slots,
            table.num_weight_slots,
        )
        numbers = (f"{simulate(schedule).makespan:g}", table.num_ticks, idle, *slots)
        cells = (f"{cell:>{len(title)}}" for title, cell in zip(header[1:], numbers, strict=True))
        lines.append("  ".join([f"{name:8}", *cells]))
    return "\n".join(lines)


def printed(path: Path) -> str:
    """What the program on a page prints."""
    (program,) = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(program, {})
    return output.getvalue().rstrip()


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
        "sizes": sizes(),
        "printed": printed(WORKED_EXAMPLE),
    }


def expected_sentences() -> Iterator[str]:
    """What the page says in words of the schedules in its pictures, with the numbers that the code gives."""
    table, other = (lower(schedule) for schedule in LARGE.values())
    ticks, others = (assign_ticks(split_backward(schedule)) for schedule in LARGE.values())
    simulated, less = (f"{simulate(schedule).makespan:g}" for schedule in LARGE.values())
    yield f"it takes {less} instead of {simulated}."
    yield f"1F1B ends at {simulated}, ZB-H1 at {less}."
    yield f"The simulator counted {simulated} for 1F1B, but these are {table.num_ticks} ticks"
    assert ticks[Action(Kind.F, 0, MICROBATCH)] == others[Action(Kind.F, 0, MICROBATCH)]
    assert end_tick(table, "unembed") == end_tick(other, "unembed")
    yield f"It enters in tick {end_tick(table, 'embed')}:"
    yield f"F runs in ticks {way(ticks, Kind.F)}, one rank after the other."
    yield f"In tick {end_tick(table, 'head')} the head turns"
    yield f"B runs in ticks {way(ticks, Kind.B)}, from rank 3 up to rank 0, "
    yield f"and in tick {end_tick(table, 'unembed')} the gradient of the embedding"
    yield f"F in ticks {way(others, Kind.F)}, and waits on its way up, B in ticks {way(others, Kind.B)}."
    each = len(split_backward(LARGE["1f1b"]).orders[0])
    idle = table.num_ticks - each
    yield f"Each rank has {each} actions, so each is idle in {idle} of {table.num_ticks} ticks."
    yield f"has the same {each} actions on each rank, and {other.num_ticks - each} idle ticks."
    last, earlier = ticks[Action(Kind.B, 3, 7)], others[Action(Kind.B, 3, 7)]
    yield f"the last B of rank 3 is in tick {earlier}, in 1F1B in tick {last}."
    weights = [tick for action, tick in others.items() if (action.kind, action.stage) == (Kind.W, 3)]
    late = [tick for tick in weights if tick > earlier]
    assert len(late) == 4
    yield f"the W of four microbatches, which now fill its ticks {late[0]} to {late[-1]}"
    read, written = ticks[Action(Kind.B, 0, 0)], ticks[Action(Kind.F, 0, MICROBATCH)]
    slots = table.ranks.residual_slot[:, 0]
    assert slots[read] == slots[written]
    yield f"from slot {slots[read]} in tick {read}, and F puts microbatch 4 there in tick {written}."


def end_tick(table: TickTable, end: str) -> int:
    return getattr(table.ends, end)[:, 0].tolist().index(MICROBATCH)


def way(ticks: dict[Action, int], kind: Kind) -> str:
    *most, last = sorted(
        tick for action, tick in ticks.items() if (action.kind, action.microbatch) == (kind, MICROBATCH)
    )
    return f"{', '.join(map(str, most))} and {last}"


def test_the_worked_example_shows_what_lowering_gives() -> None:
    found = figures(WORKED_EXAMPLE)
    expected = expected_figures()
    assert set(found) == set(expected)
    for name, text in expected.items():
        assert found[name] == text, f"figure {name!r} should be\n{text}"


def test_the_worked_example_says_in_words_what_the_code_gives() -> None:
    page = " ".join(WORKED_EXAMPLE.read_text(encoding="utf-8").split())
    for sentence in expected_sentences():
        assert sentence in page, f"the page should say: {sentence}"


def test_what_the_page_says_of_memory_is_so() -> None:
    held = [simulate(schedule).peak_until_weight for schedule in LARGE.values()]
    assert [list(peaks) for peaks in held] == [[4, 3, 2, 1], [4, 4, 4, 4]]
    table = lower(build("1f1b", num_ranks=4, num_microbatches=64))
    assert (table.num_residual_slots, table.num_weight_slots) == (4, 1)
    last = lower(LARGE["zb_h1"]).ranks.residual_slot[:, 3]
    assert set(last.tolist()) == {0, 4}, "one residual slot of rank 3 is used, 4 stands for none"


def test_the_tick_that_the_page_explains_is_as_it_says() -> None:
    """Its section 4; the picture of it is drawn from the same table."""
    table = lower(LARGE["zb_h1"])
    ranks, ends = table.ranks, table.ends
    assert (IDLE, FORWARD, BACKWARD, WEIGHT, BACKWARD_WEIGHT) == (0, 1, 2, 3, 4)
    assert ranks.kind[8].tolist() == [WEIGHT, BACKWARD, FORWARD, BACKWARD]
    assert ranks.microbatch[8].tolist() == [0, 1, 3, 2]
    assert (ends.unembed[8, 0], ends.head[8, 0], ends.head_slot[8, 0], ends.embed[8, 0]) == (0, 2, 0, NONE)
    assert (ranks.residual_slot[8, 1], ranks.weight_slot[8, 1]) == (1, 1)
    assert (ranks.inbox_read[8, 2], ranks.residual_slot[8, 2], ranks.input_slot[8, 2]) == (0, 1, 3)
    trash = table.num_inbox_slots
    assert ranks.from_below[8].tolist() == [trash, trash, trash, 0]
    assert ranks.from_above[8].tolist() == [0, trash, 0, trash]
    assert (ranks.from_below[:, 0] == trash).all(), "a path from rank 3 to rank 0 would be used"
    assert (ends.head[4, 0], ends.head_slot[4, 0]) == (0, 1)
    assert (ranks.from_below[3, 3], ranks.inbox_read[5, 3], ranks.microbatch[5, 3]) == (0, 0, 1)


def test_the_readme_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "show", "zb_h1", "--ranks", "4", "--microbatches", "8"]) == 0
    assert figures(README)["zb_h1"] == capsys.readouterr().out.rstrip("\n")


def test_every_picture_of_ticks_is_on_the_page_and_has_words_for_who_cannot_see_it() -> None:
    shown = dict(re.findall(r"!\[([^\]]*)\]\((ticks/[^)]+)\)", WORKED_EXAMPLE.read_text(encoding="utf-8")))
    assert set(shown.values()) == {f"ticks/{path.name}" for path in (ROOT / "docs" / "ticks").iterdir()}
    assert all(len(words) > 40 for words in shown)
