"""Writes docs/schedules.md and its pictures from the code (``make docs``); a test tells if they are stale."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jaxpipe.pictures import Timed, svg
from jaxpipe.schedules import GENERATORS, Costs, build, simulate, split_backward, with_recompute

FOLDER = Path(__file__).parent

NUM_RANKS, NUM_MICROBATCHES = 4, 8
SIZES = ((4, 8), (8, 32))
"""Ranks and microbatches of the pictures, and of the tables."""


INTRODUCTION = """\
All of them run in the one executor, except chimera with more than two pipes, and have the same gradients: to
the bit among those with one pipe, and among those with two (chimera, dualpipe), which add up two halves.

A schedule of your own comes from a CSV file, which `jaxpipe schedule csv` shows how to write; it keeps the
bits if it takes the microbatches of each stage in ascending order. And `jaxpipe schedule auto` searches for
the best order at given costs, for a given memory; `--pipeline.schedule auto` does so at equal costs.

In pictures and tables F, B and W of a rank's layers cost 1 each, cut into v chunks 1/v each, and messages
take no time. *Span* is the longest time from a rank's first action to its last: what a step costs if the
optimizer step of each rank follows at once. *Held* is the most activations that any rank keeps until B, and
until W, in those of a rank's layers for one microbatch. *Weights* are copies during a step.

In what is said of each schedule, p is the number of ranks, m of microbatches, v of chunks; F, B, W are costs
of one stage, that is of one chunk, BW = B + W, and what is held is counted in stages.

Real costs are not equal, and messages take time. How much that matters tells

```sh
jaxpipe schedule compare 1f1b zb_h1 zb_v --ranks 4 --microbatches 16 \\
  --cost F=10 --cost B=12 --cost W=8 --transfer 1
```"""


RECOMPUTATION = """\
## Recomputation as an action

With `--pipeline.remat full` the backward of a layer begins with its forward, done again. Inside B that makes
B longer, and the rank before waits for all of it, in the drain once on every rank. But the forward needs
nothing of another rank. With `--pipeline.schedule_recompute` it is an action of its own, R, and may run while
its rank waits:

![1f1b with R, 4 ranks, 8 microbatches](schedules/1f1b_recompute.svg)

Each R stands right before its B, where the wait for the gradient hides it, or before an earlier action that
its rank waits for; all others keep their order. A rank has at most one microbatch of a stage between R and
B: of what F leaves without remat there is that one, whatever the schedule holds, beside the inputs of layers
that full remat holds anyway. What attention gives stays until W. Gradients are those of all other ways to
run, and among schedules with R and one pipe the same to the bit.

Makespans of {ranks} ranks and {microbatches} microbatches, F, B, W and R of a rank's layers 1 each: with
messages of their own; and as the program runs, in ticks in which a rank waits for its neighbours' tick
(`--sync neighbor`, which `--program segments` wants, too), BW in two actions:
"""

AFTER_RECOMPUTATION = """\

The drain of 1f1b, gpipe and zb_h1 is shorter by R for each rank but one. In ticks it saves more: a B that
recomputes takes the time of two other actions, and all ranks wait for it, while F, R, B and W take one each.
Emulated devices share the cores, so there an idle rank costs little and a further tick does: measure it.

```sh
jaxpipe schedule show 1f1b --ranks 4 --microbatches 8 --recompute --cost R=0.9
jaxpipe schedule auto --ranks 4 --microbatches 16 --recompute --sync neighbor --format csv -o best.csv
```"""


class Advice(NamedTuple):
    """What a schedule is for, and when to choose it."""

    purpose: str
    choose: str


ADVICE = {
    "gpipe": Advice(
        "The simplest order there is: a picture to compare the others with.",
        "Almost never: 1f1b takes the same time and less memory. For a step of few microbatches it does "
        "no harm.",
    ),
    "1f1b": Advice(
        "The schedule that most training runs use: it bounds memory by the number of ranks.",
        "When memory for weight gradients that wait is scarce, or B and W cannot be had apart. The default "
        "without chunks.",
    ),
    "interleaved": Advice(
        "1f1b with a bubble that is v times smaller, paid with v times as many messages.",
        "With few microbatches a rank, fast links, and enough layers to give each rank several chunks. "
        "The default "
        "with chunks.",
    ),
    "looped_bfs": Advice(
        "Chunks breadth first: between two uses of the same weights lies a whole batch.",
        "When weights are sharded over dp and gathered for each chunk, so that they are gathered once a "
        "batch; and "
        "when memory for all microbatches is there.",
    ),
    "zb_h1": Advice(
        "1f1b with a third of the bubble in the same number of activations.",
        "As the first thing to try beyond 1f1b: one chunk, no further weights. What B leaves for W needs "
        "memory too.",
    ),
    "zb_h2": Advice(
        "No bubble between a rank's first action and its last, at equal costs with 2p-1 microbatches or "
        "more.",
        "When there is memory for twice the activations of 1f1b, and F, B and W cost about the same.",
    ),
    "interleaved_zb": Advice(
        "Interleaved, with W where a rank would be idle: both savings at once.",
        "With few microbatches, several chunks and fast links. It wants less memory than interleaved as "
        "well.",
    ),
    "zb_v": Advice(
        "No bubble but at the ends, with the memory of 1f1b, spread evenly over the ranks.",
        "When a rank has at least two layers: usually the best use of the memory that 1f1b has.",
    ),
    "v_half": Advice(
        "Half the memory of 1f1b, for a bubble that is still smaller than its.",
        "When activations do not fit, before turning to full recomputation.",
    ),
    "v_min": Advice(
        "A third of the memory of 1f1b.",
        "When v_half does not fit either. It suffers most from costs that are not equal.",
    ),
    "dualpipe_v": Advice(
        "F of one chunk beside the backward of the other, so that communication inside layers can hide.",
        "For layers that wait for communication, such as mixtures of experts; else zb_v holds less in "
        "the same time.",
    ),
    "dualpipe": Advice(
        "As dualpipe_v, with two pipes: half the bubble, and twice the weights.",
        "When weights are small beside activations, since each rank holds two stages during a step.",
    ),
    "chimera": Advice(
        "Two opposed 1f1b: half the warm-up, and twice the weights.",
        "With as few microbatches as ranks, when weights are small beside activations.",
    ),
}


def write(folder: Path) -> None:
    """The page and a picture for each schedule."""
    pictures = folder / "schedules"
    pictures.mkdir(parents=True, exist_ok=True)
    for name in GENERATORS:
        (pictures / f"{name}.svg").write_text(svg([timed(name)]), encoding="utf-8")
    (pictures / "1f1b_recompute.svg").write_text(svg([_recomputing()]), encoding="utf-8")
    (folder / "schedules.md").write_text("\n".join(_page()) + "\n", encoding="utf-8")


def timed(name: str, num_ranks: int = NUM_RANKS, num_microbatches: int = NUM_MICROBATCHES) -> Timed:
    """F, B and W of a rank's layers cost 1 each, however many chunks they are cut into."""
    schedule = build(name, num_ranks=num_ranks, num_microbatches=num_microbatches)
    num_chunks = schedule.placement.num_chunks
    costs = Costs(F=1 / num_chunks, B=1 / num_chunks, W=1 / num_chunks)
    return Timed(name, schedule, simulate(schedule, costs=costs), stages_per_unit=num_chunks)


def _page() -> Iterator[str]:
    yield "# Schedules"
    yield ""
    yield "<!-- Written by `make docs`; change docs/schedules_page.py or the docstrings instead. -->"
    yield ""
    yield INTRODUCTION
    for num_ranks, num_microbatches in SIZES:
        yield ""
        yield from _table(num_ranks, num_microbatches)
    yield ""
    yield from RECOMPUTATION.format(ranks=NUM_RANKS, microbatches=NUM_MICROBATCHES).splitlines()
    yield ""
    yield from _recompute_table()
    yield from AFTER_RECOMPUTATION.splitlines()
    for name in GENERATORS:
        yield ""
        yield from _section(name)


def _recomputing() -> Timed:
    schedule = split_backward(build("1f1b", num_ranks=NUM_RANKS, num_microbatches=NUM_MICROBATCHES))
    placed = with_recompute(schedule)
    return Timed("1f1b with R", placed, simulate(placed))


def _recompute_table() -> Iterator[str]:
    yield "| schedule | inside B | as R | in ticks, inside B | in ticks, as R |"
    yield "| --- | --- | --- | --- | --- |"
    for name in GENERATORS:
        schedule = build(name, num_ranks=NUM_RANKS, num_microbatches=NUM_MICROBATCHES)
        part = 1 / schedule.placement.num_chunks
        costs, inside = Costs(F=part, B=part, W=part, R=part), Costs(F=part, B=2 * part, W=part)
        figures = []
        for sync, order in (("async", schedule), ("neighbor", split_backward(schedule))):
            placed = with_recompute(order, costs=costs, sync=sync)
            figures += [
                simulate(order, costs=inside, sync=sync).makespan,
                simulate(placed, costs=costs, sync=sync).makespan,
            ]
        yield f"| {name} | {' | '.join(f'{figure:g}' for figure in figures)} |"


def _table(num_ranks: int, num_microbatches: int) -> Iterator[str]:
    yield f"{num_ranks} ranks, {num_microbatches} microbatches:"
    yield ""
    yield "| schedule | chunks | makespan | bubble | span | held until B | held until W | weights |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for name in GENERATORS:
        one = timed(name, num_ranks, num_microbatches)
        placement, simulation = one.schedule.placement, one.simulation
        figures = [
            f"[{name}](#{name})",
            placement.num_chunks,
            f"{simulation.makespan:g}",
            f"{simulation.bubble_fraction:.1%}",
            f"{simulation.longest_rank_span:g}",
            f"{one.peak_until_backward:g}",
            f"{one.peak_until_weight:g}",
            placement.num_pipes,
        ]
        yield f"| {' | '.join(map(str, figures))} |"


def _section(name: str) -> Iterator[str]:
    generator, advice = GENERATORS[name], ADVICE[name]
    yield f"## {name}"
    yield ""
    yield advice.purpose
    yield ""
    yield f"**When:** {advice.choose}"
    yield ""
    yield f"![{name}, {NUM_RANKS} ranks, {NUM_MICROBATCHES} microbatches](schedules/{name}.svg)"
    yield ""
    yield from inspect.cleandoc(generator.make.__doc__ or "").splitlines()
    if generator.options:
        yield ""
        yield f"Options: {', '.join(f'`{option}`' for option in generator.options)}."


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
