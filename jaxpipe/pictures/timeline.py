"""One schedule's rows: what each rank does when, and below, what it holds meanwhile.

rank 0  |F0|F1|  |B0|W0| ...
rank 1  |  |F0|B0|F1|    ...

rank 0  a step curve for each rank: held until B, dark, before held until W, light
rank 1
"""

from collections.abc import Iterator
from typing import NamedTuple

from jaxpipe.pictures.axis import Axis
from jaxpipe.pictures.colors import Shade
from jaxpipe.pictures.elements import LABEL_SIZE, group, line, rect, text
from jaxpipe.pictures.labels import explain_action, explain_held, explain_idle, explain_shared, labels_of
from jaxpipe.pictures.text_width import width_of_box
from jaxpipe.pictures.timed import Timed, held_by
from jaxpipe.schedules import Action, Cause

ROW, BOX = 24.0, 21.0
"""Heights of a rank's row in the timeline, and of its boxes."""
CURVE_ROW, CURVE = 38.0, 32.0
"""Heights of a rank's row below, and of the highest curve."""
BETWEEN = 12.0
"""Height of the gap between timeline and curves."""
THINNEST_WITH_OUTLINE = 3.0
BAR, INSET = 2.5, 2.75
"""The bar that marks a pipe (of pipe 1 below the label, of pipe 2 above, of pipe 3 both): how high it is, and
how far its middle lies from the edge of the box."""

STYLE = f"""\
.grid{{stroke:var(--grid);fill:none}}
.bar{{stroke:#0b0d10;stroke-width:{BAR:g};fill:none}}
.thin rect{{stroke:none}}
.box text{{fill:#0b0d10;text-anchor:middle;pointer-events:none}}
.dependency rect{{fill:var(--idle)}}
.transfer rect{{fill:url(#transfer)}}
.neighbor rect{{fill:url(#neighbor)}}
.imbalance rect{{fill:url(#imbalance)}}
.overhead rect{{fill:url(#overhead)}}
.ends rect{{fill:url(#ends)}}
.shared rect{{fill:var(--shared)}}
.drain rect{{fill:none;stroke:var(--grid);stroke-dasharray:3 3;pointer-events:all}}
.pattern{{stroke:var(--idle-mark);fill:none}}
.ground{{fill:var(--idle)}}
.held rect{{shape-rendering:crispEdges}}
.held-b{{fill:var(--held-b)}}
.held-w{{fill:var(--held-w)}}
.base{{stroke:var(--idle-mark);fill:none}}"""

PATTERNS = """\
<defs>\
<pattern id="transfer" width="6" height="6" patternUnits="userSpaceOnUse"><rect class="ground" width="6" \
height="6"/><path class="pattern" d="M-1 7L7 -1M-1 1L1 -1M5 7L7 5"/></pattern>\
<pattern id="neighbor" width="6" height="6" patternUnits="userSpaceOnUse"><rect class="ground" width="6" \
height="6"/><path class="pattern" d="M3 1.5V4.5M1.5 3H4.5"/></pattern>\
<pattern id="imbalance" width="6" height="6" patternUnits="userSpaceOnUse"><rect class="ground" width="6" \
height="6"/><path class="pattern" d="M-1 -1L7 7M-1 5L1 7M5 -1L7 1"/></pattern>\
<pattern id="overhead" width="6" height="6" patternUnits="userSpaceOnUse"><rect class="ground" width="6" \
height="6"/><path class="pattern" d="M3 0V6"/></pattern>\
<pattern id="ends" width="6" height="6" patternUnits="userSpaceOnUse"><rect class="ground" width="6" \
height="6"/><path class="pattern" d="M0 3H6"/></pattern>\
</defs>"""


class Layout(NamedTuple):
    """Where a schedule's rows begin; ``scale`` is the most that any rank in the picture holds."""

    timed: Timed
    top: float
    scale: float

    @property
    def curves_top(self) -> float:
        return self.top + ROW * self.timed.schedule.num_ranks + BETWEEN

    @property
    def bottom(self) -> float:
        return self.curves_top + CURVE_ROW * self.timed.schedule.num_ranks


def draw_heads(layout: Layout, *, left: float) -> Iterator[str]:
    """The names of the rows, and the peaks beside the curves."""
    for rank in range(layout.timed.schedule.num_ranks):
        name, peaks = head_texts(layout.timed, rank)
        yield text(left, layout.top + ROW * rank + 15, name, css="label")
        top = layout.curves_top + CURVE_ROW * rank
        yield text(left, top + 13, name, css="label")
        yield text(left, top + 28, peaks, css="muted")


def head_texts(timed: Timed, rank: int) -> tuple[str, str]:
    """A rank's name, and its peaks until B and until W."""
    simulation = timed.simulation
    peaks = (simulation.peak_until_backward[rank], simulation.peak_until_weight[rank])
    return f"rank {rank}", "peak " + ", ".join(f"{peak / timed.stages_per_unit:.3g}" for peak in peaks)


def draw_rows(layout: Layout, axis: Axis) -> Iterator[str]:
    """Boxes and curves."""
    timed = layout.timed
    for idle in timed.simulation.idle:
        box = _box(idle.start, idle.end, axis, top=layout.top + ROW * idle.rank)
        yield group(f"idle {idle.cause}", explain_idle(idle), box)
    for rank in range(timed.schedule.num_ranks):
        for start, end in timed.simulation.ends_of(rank):
            box = _box(start, end, axis, top=layout.top + ROW * rank)
            yield group("shared", explain_shared(start, end), box)
    for rank, action in timed.schedule.actions():
        yield _draw_action(action, timed, axis, top=layout.top + ROW * rank)
    for rank in range(timed.schedule.num_ranks):
        base = layout.curves_top + CURVE_ROW * rank + CURVE
        yield from _draw_held(layout, axis, rank=rank, base=base)
        yield line(axis.left, base, axis.x(timed.simulation.makespan), base, css="base")


def causes_of(timed: Timed) -> list[Cause]:
    """The causes of idle time that occur."""
    found = {idle.cause for idle in timed.simulation.idle}
    return [cause for cause in Cause if cause in found]


def shade_of(action: Action, timed: Timed) -> Shade:
    """The colour of an action's box."""
    placement = timed.schedule.placement
    return Shade(action.kind, placement.chunk(action.stage, action.pipe), placement.num_chunks)


def draw_bars(pipe: int, left: float, right: float, *, top: float) -> Iterator[str]:
    """The mark of a pipe in a box of height ``BOX``."""
    if pipe & 1:
        yield line(left, top + BOX - INSET, right, top + BOX - INSET, css="bar")
    if pipe & 2:
        yield line(left, top + INSET, right, top + INSET, css="bar")


def _draw_action(action: Action, timed: Timed, axis: Axis, *, top: float) -> str:
    left, right = axis.x(timed.simulation.start[action]), axis.x(timed.simulation.end[action])
    width = right - left
    parts = [rect(left, top, width, BOX), *draw_bars(action.pipe, left, right, top=top)]
    fitting = (label for label in labels_of(action) if width_of_box(label, LABEL_SIZE) <= width + 1e-6)
    if label := next(fitting, ""):
        parts.append(text((left + right) / 2, top + 14, label, css="label"))
    thin = " thin" if width < THINNEST_WITH_OUTLINE else ""
    css = f"box {action.kind} {shade_of(action, timed).css}{thin}"
    return group(css, explain_action(action, timed), *parts)


def _draw_held(layout: Layout, axis: Axis, *, rank: int, base: float) -> Iterator[str]:
    for held in held_by(layout.timed, rank):
        left, width = axis.x(held.start), axis.x(held.end) - axis.x(held.start)
        bars = (("held-w", held.until_weight), ("held-b", held.until_backward))
        heights = ((css, CURVE * value / layout.scale) for css, value in bars if value)
        yield group(
            "held",
            explain_held(held, rank),
            *(rect(left, base - height, width, height, css=css) for css, height in heights),
        )


def _box(start: float, end: float, axis: Axis, *, top: float) -> str:
    return rect(axis.x(start), top, axis.x(end) - axis.x(start), BOX)
