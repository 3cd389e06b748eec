"""A schedule's times for the eye: time across, ranks down, as zero-bubble papers draw it.

    rank 0 |F0F1F2F3......B0W0F4B1W1F5...
    rank 1 |..F0F1F2....B0F3B1W0F4B2W1...

Where a rank has two stages, those of the second have small letters; where it has more, actions are named in
full. What stands in for idle time tells its cause. A grid that is wider than the terminal goes on below.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import floor
from typing import NamedTuple

from jaxpipe.schedules.actions import Action, Kind
from jaxpipe.schedules.render import line_heads
from jaxpipe.schedules.schedule import Schedule
from jaxpipe.schedules.simulate import Cause, Simulation

CUT = "#"
GLYPHS = {
    Cause.DEPENDENCY: ".",
    Cause.TRANSFER: "~",
    Cause.NEIGHBOR: ":",
    Cause.IMBALANCE: "!",
    Cause.ENDS: "-",
    Cause.DRAIN: "_",
    Cause.OVERHEAD: "'",
}
"""What idle time of each cause is drawn with."""
SHARED = "="
"""What stands for the work that all ranks do together at the ends of the pipe."""
MOST_LETTERS = 2_000_000
"""Nobody reads a grid of more."""

Paint = Callable[[Action, str], str]
"""Gives the text of an action, or a piece of it, the action's colour."""


class Bar(NamedTuple):
    """What stands in a rank's line from ``start`` to ``end``: a name, or a mark that is repeated."""

    start: float
    end: float
    label: str
    action: Action | None = None


class Lines(NamedTuple):
    """A schedule's bars, rank by rank, in the order of time; they leave no gap."""

    heads: tuple[str, ...]
    bars: tuple[tuple[Bar, ...], ...]
    makespan: float

    def room(self, width: int) -> int:
        """The columns that are left beside the heads."""
        return max(width - len(self.heads[0]), 16)


def time_grid(
    schedule: Schedule, simulation: Simulation, *, width: int = 80, paint: Paint | None = None
) -> str:
    """What each rank does when, in lines of up to ``width``; the last lines say what was wrapped or cut.

    paint: what colours the actions; their names then are the microbatches alone.
    """
    lines = lines_of(schedule, simulation, only_microbatches=paint is not None)
    return draw_lines(lines, width=width, scale=columns_per_second(lines, width=width), paint=paint)


def lines_of(schedule: Schedule, simulation: Simulation, *, only_microbatches: bool = False) -> Lines:
    """The bars of a grid."""
    bars: list[list[Bar]] = [[] for _ in schedule.orders]
    name = str if only_microbatches else _namer(schedule)
    for rank, action in schedule.actions():
        label = f"{action.microbatch}" if only_microbatches else name(action)
        bars[rank].append(Bar(simulation.start[action], simulation.end[action], label, action))
    for idle in simulation.idle:
        bars[idle.rank].append(Bar(idle.start, idle.end, GLYPHS[idle.cause]))
    for rank, line in enumerate(bars):
        line += (Bar(start, end, SHARED) for start, end in simulation.ends_of(rank))
    ordered = tuple(tuple(sorted(line, key=lambda bar: bar.start)) for line in bars)
    return Lines(line_heads(schedule), ordered, simulation.makespan)


def draw_lines(lines: Lines, *, width: int, scale: float, paint: Paint | None = None) -> str:
    """The grid at ``scale`` columns per second; of one of more than ``MOST_LETTERS`` the beginning."""
    room, length = lines.room(width), _column(lines.makespan, scale)
    if length > room and scale == int(scale):
        room -= room % int(scale)
    num_pieces = max(MOST_LETTERS // (room * len(lines.bars)), 1)
    drawn = [[*islice(_cut_up(_draw(line, scale=scale), room=room), num_pieces)] for line in lines.bars]
    blocks = [
        "\n".join(
            (head + _joined(piece, paint)).rstrip() for head, piece in zip(lines.heads, block, strict=True)
        )
        for block in zip(*drawn, strict=True)
    ]
    if length > num_pieces * room:
        shown = num_pieces * room / scale
        blocks.append(f"(cut: {len(blocks)} pieces, up to {shown:g} of {lines.makespan:g} in time)")
    elif len(blocks) > 1:
        blocks.append(f"(wrapped: {len(blocks)} pieces of {room / scale:g} in time)")
    if any(len(bar.label) > _span(bar, scale) for line in lines.bars for bar in line if bar.action):
        blocks.append(f"(an action too short for its name is drawn as {CUT}, or not at all)")
    return "\n\n".join(blocks)


def columns_per_second(lines: Lines, *, width: int) -> float:
    """Wide enough for each label and a blank; without the blank if so all fits in one piece.

    Where times do not fall on whole columns, one column more makes sure that rounding cuts no label.
    Costs far apart, or long transfers, would draw the grid out: there the shortest actions lose their labels.
    """
    named = [bar for line in lines.bars for bar in line if bar.action]
    average = sum(bar.end - bar.start for bar in named) / len(named)
    too_short = max(average / 6, lines.makespan / max(2000, 6 * len(named)))
    shortest: dict[int, float] = {}
    for bar in named:
        length, duration = len(bar.label), max(bar.end - bar.start, too_short)
        shortest[length] = min(duration, shortest.get(length, duration))

    def scale(extra: int) -> float:
        return max((length + extra) / duration for length, duration in shortest.items())

    def is_exact(scale: float) -> bool:
        times = (time * scale for bar in named for time in (bar.start, bar.end))
        return all(abs(time - round(time)) < 1e-6 for time in times)

    tight, wide, room = scale(0), scale(1), lines.room(width)
    if lines.makespan * tight <= room < lines.makespan * wide and is_exact(tight):
        return tight
    return wide if is_exact(wide) else scale(2)


def fits(lines: Lines, *, width: int, scale: float) -> bool:
    """Whether ``draw_lines`` has no need to wrap at that scale."""
    return _column(lines.makespan, scale) <= lines.room(width)


def grid_legend(schedule: Schedule, simulation: Simulation) -> list[str]:
    """What the marks and letters of a plain grid mean, those that occur."""
    kinds = {action.kind for action in simulation.start}
    meaning = {
        Kind.F: "forward",
        Kind.R: "forward again",
        Kind.B: "input gradient",
        Kind.W: "weight gradient",
        Kind.BW: "both",
    }
    said = [", ".join(f"{kind} {meaning[kind]}" for kind in Kind if kind in kinds)]
    if second := _second_stage(schedule):
        said[0] += f"; small letters: {second}"
    return [*said, *idle_legend(simulation)]


def idle_legend(simulation: Simulation) -> list[str]:
    """What the marks between the actions mean."""
    causes = {idle.cause for idle in simulation.idle}
    marks = [f"{GLYPHS[cause]} {cause}" for cause in Cause if cause in causes]
    said = ["idle: " + "  ".join(marks)] if marks else []
    return [*said, f"{SHARED} embedding and head, all ranks together"] if simulation.ends_of(0) else said


def _second_stage(schedule: Schedule) -> str:
    """What a rank's second stage is, where it has two; else nothing."""
    num_chunks, num_pipes = schedule.placement.num_chunks, schedule.placement.num_pipes
    return {(2, 1): "chunk 1", (1, 2): "pipe 1"}.get((num_chunks, num_pipes), "")


def _namer(schedule: Schedule) -> Callable[[Action], str]:
    """The shortest names that tell a rank's actions apart."""
    placement = schedule.placement
    if placement.num_chunks * placement.num_pipes > 2:
        return str
    small = {
        (stage, pipe)
        for pipe in range(placement.num_pipes)
        for stage in range(placement.num_stages)
        if pipe or placement.chunk(stage, pipe)
    }

    def name(action: Action) -> str:
        kind = action.kind.lower() if (action.stage, action.pipe) in small else action.kind
        return f"{kind}{action.microbatch}"

    return name


def _draw(line: Sequence[Bar], *, scale: float) -> Iterator[tuple[str, Action | None]]:
    """One rank's line as texts, each with the action that it belongs to."""
    for bar in line:
        span = _span(bar, scale)
        if bar.action is None:
            yield bar.label * span, None
        else:
            yield bar.label.ljust(span) if len(bar.label) <= span else CUT * span, bar.action


def _cut_up(
    texts: Iterator[tuple[str, Action | None]], *, room: int
) -> Iterator[list[tuple[str, Action | None]]]:
    """Pieces of ``room`` columns; a name that an end would cut in two stands behind it, if it can."""
    piece: list[tuple[str, Action | None]] = []
    left = room
    for text, action in texts:
        label = text.rstrip()
        if left < len(label) <= len(text) - left:
            text = " " * left + label.ljust(len(text) - left)
        while len(text) > left:
            yield [*piece, (text[:left], action)]
            text, piece, left = text[left:], [], room
        piece.append((text, action))
        left -= len(text)
    if piece:
        yield piece


def _joined(piece: Sequence[tuple[str, Action | None]], paint: Paint | None) -> str:
    if paint is None:
        return "".join(text for text, _ in piece)
    return "".join(paint(action, text) if action and text else text for text, action in piece)


def _span(bar: Bar, scale: float) -> int:
    return _column(bar.end, scale) - _column(bar.start, scale)


def _column(time: float, scale: float) -> int:
    return floor(time * scale + 0.5)
