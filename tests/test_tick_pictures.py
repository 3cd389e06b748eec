"""The pictures of docs/how-a-schedule-becomes-ticks.md show what the schedule says, not what was drawn."""

import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tick_pictures.grid import draw_grid
from tick_pictures.lives import hops, lives, num_slots
from tick_pictures.one_tick import draw_tick
from tick_pictures.slots import draw_slots

from jaxpipe.lowering import lower
from jaxpipe.schedules import Action, Kind, Schedule, assign_ticks, build, split_backward, to_csv

SCRIPT = Path(__file__).parents[1] / "docs" / "ticks_page.py"
SVG = "{http://www.w3.org/2000/svg}"

SCHEDULES = [
    build("1f1b", num_ranks=4, num_microbatches=8),
    build("zb_h1", num_ranks=4, num_microbatches=8),
    build("zb_v", num_ranks=3, num_microbatches=5),
    build("interleaved", num_ranks=3, num_microbatches=6),
]

PAIRS = {
    "residuals": (Kind.F, Kind.B),
    "linear inputs": (Kind.F, Kind.W),
    "weight inputs": (Kind.B, Kind.W),
}
"""Who writes and who reads a value in each buffer."""


def ids(schedule: Schedule) -> str:
    return schedule.name


@pytest.mark.parametrize("schedule", SCHEDULES, ids=ids)
def test_every_value_lives_from_its_writer_to_its_reader(schedule: Schedule) -> None:
    table, ticks = lower(schedule), assign_ticks(split_backward(schedule))
    shown = [life for rank in range(schedule.num_ranks) for life in lives(table, rank)]
    for buffer, (writer, reader) in PAIRS.items():
        found = {life.reader: (life.written.tick, life.read.tick) for life in shown if life.buffer == buffer}
        expected = {
            action: (ticks[action._replace(kind=writer)], tick)
            for action, tick in ticks.items()
            if action.kind is reader
        }
        assert found == expected
    read = [life.reader for life in shown if life.buffer == "inbox"]
    assert sorted(read) == sorted(action for action in ticks if action.kind in (Kind.F, Kind.B))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=ids)
def test_bars_in_a_slot_never_overlap(schedule: Schedule) -> None:
    table = lower(schedule)
    for rank in range(schedule.num_ranks):
        bars = defaultdict(list)
        for life in lives(table, rank):
            assert life.slot < num_slots(table, life.buffer)
            bars[life.buffer, life.slot].append((life.written, life.read))
        for row in bars.values():
            row.sort()
            assert all(end < start for (_, end), (start, _) in pairwise(row))


@pytest.mark.parametrize("schedule", SCHEDULES[:2], ids=ids)
def test_a_microbatch_hops_down_all_ranks_and_back(schedule: Schedule) -> None:
    way = sorted(hops(lower(schedule), 4), key=lambda hop: hop.life.written)
    assert [(hop.sender, hop.receiver) for hop in way] == [(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)]
    ticks = assign_ticks(split_backward(schedule))
    for hop in way:
        sent = Action(hop.life.reader.kind, hop.sender, 4)
        assert hop.life.written.tick == ticks[sent]
        assert hop.life.read.tick == ticks[hop.life.reader]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=ids)
def test_a_grid_has_a_box_for_each_action_and_each_end(schedule: Schedule) -> None:
    boxes = classes(draw_grid(lower(schedule), 2))
    actions = [*split_backward(schedule).actions()]
    assert sum("box" in box for box in boxes) == len(actions) + 3  # and those of the legend
    assert sum("idle" in box for box in boxes) == len(lower(schedule).ranks.kind.flat) - len(actions) + 1
    assert sum(box[0] == "end" for box in boxes) == 3 * schedule.num_microbatches + 1
    chosen = 2 * schedule.placement.num_stages + 3
    assert sum("chosen" in box for box in boxes) == chosen + 1


@pytest.mark.parametrize("schedule", SCHEDULES, ids=ids)
def test_nothing_is_drawn_outside_of_a_picture(schedule: Schedule) -> None:
    table = lower(schedule)
    drawn = [draw_grid(table, 2), *(draw_slots(table, rank) for rank in range(schedule.num_ranks))]
    if schedule.placement.num_chunks == 1:
        drawn.append(draw_tick(table, 8))
    for picture in drawn:
        root = ElementTree.fromstring(picture)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for box in root.iterfind(f".//{SVG}rect[@x]"):  # those of patterns have no place
            x, y, wide, high = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
            assert 0 <= x <= x + wide <= width
            assert 0 <= y <= y + high <= height


def test_the_script_draws_a_schedule_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(to_csv(SCHEDULES[2]), encoding="utf-8")
    run = subprocess.run([sys.executable, SCRIPT, tmp_path / "drawn", "--schedule", path], timeout=120)
    assert run.returncode == 0
    names = {picture.name for picture in (tmp_path / "drawn").iterdir()}
    assert names == {"order.svg", "ticks.svg", *(f"slots-rank-{rank}.svg" for rank in range(3))}
    assert "mine" in (tmp_path / "drawn" / "ticks.svg").read_text(encoding="utf-8")


def test_the_script_refuses_what_it_cannot_draw(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, tmp_path, "--schedule", "chimera"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 2
    assert "chimera has 2 pipes; only one can be drawn" in run.stderr
    assert "Traceback" not in run.stderr


def classes(picture: str) -> list[list[str]]:
    """Of all groups."""
    groups = ElementTree.fromstring(picture).iter(f"{SVG}g")
    return [group.attrib["class"].split() for group in groups]
