"""Which layout to train with: dp, pp, tp, schedule, microbatches, remat and ZeRO for so many devices.

The fastest layouts that fit are listed with what a step takes, what a device holds, why the others lost, and
the flags that run the first. No other keys of the configuration matter but model, data.sequence_length,
data.isolate_documents, train.global_batch_size, train.eval_batch_size and train.compute_dtype.

Bytes are those that --dry-run counts. Times are estimated from data sheets, or predicted from what
`jaxpipe profile` has measured (--costs); docs/planning.md says how.
"""

import argparse
import json
import os
from pathlib import Path

from jaxpipe.cli.faults import RefusedError, refuse_if_any
from jaxpipe.cli.leaving import leaving_at_once
from jaxpipe.cli.output import (
    add_output_arguments,
    find_file_faults,
    find_output_faults,
    write,
    write_or_show,
)
from jaxpipe.cli.plan_request import DEFAULT_DEVICE, Request, read_request
from jaxpipe.cli.plan_text import Shown, as_json, as_text, flags_of, format_memory, points_of
from jaxpipe.cli.progress_bar import progress_bar
from jaxpipe.config import faults
from jaxpipe.config.planned_layout import with_layout
from jaxpipe.pictures.frontier import draw_frontier
from jaxpipe.planning.reasons import meshes_left_out
from jaxpipe.planning.search import (
    NEAR,
    Proposal,
    Space,
    are_alike,
    faster_but_larger,
    fastest,
    frontier,
    make_space,
    rank,
    smallest,
)
from jaxpipe.units import counted

FORMATS = ("text", "json")

_TRIES = 4
"""For each layout that is to be shown so many are counted, the others may be too large after all."""

_MOST_LARGER, _MOST_SMALLEST = 4, 6

_SHARES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0)
"""Of the memory that there is: for what the frontier is drawn."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to train, on what, and how to show it."""
    parser.add_argument("--model", metavar="FILE", required=True, help="a configuration, as for train.py")
    parser.add_argument("--devices", metavar="N", required=True, help="how many; all are used")
    parser.add_argument(
        "--memory", metavar="SIZE", required=True, help="what a step may hold on one, as 80GB or 75GiB"
    )
    parser.add_argument("--device", metavar="KIND", help=f"as JAX names it (default {DEFAULT_DEVICE!r})")
    parser.add_argument("--costs", metavar="FILE", help="what `jaxpipe profile` has measured, for estimates")
    parser.add_argument("--sequence-length", metavar="N", help="instead of data.sequence_length")
    parser.add_argument("--global-batch", metavar="N", help="instead of train.global_batch_size")
    parser.add_argument("--top", metavar="N", default="10", help="how many layouts to list (default 10)")
    parser.add_argument("--picture", metavar="FILE", help="draw time against memory as an SVG")
    add_output_arguments(parser, FORMATS)


def run(arguments: argparse.Namespace) -> None:
    """Search, count and show; ``RefusedError`` with all that is wrong, or with what would fit."""
    found: list[str] = []
    request = read_request(arguments, found)
    found += find_output_faults(arguments, FORMATS) + _find_picture_faults(arguments.picture)
    refuse_if_any(found)
    assert request is not None, "without one there is a fault"
    space = make_space(request.task, request.parts_of)
    chosen = _choose(request, space)
    if not chosen:
        least = _least(request, space)
        chosen = [shown for shown in least if shown.total <= request.memory]
        if not chosen:
            raise RefusedError([_what_would_fit(request, least)])
    larger = _larger(request, space, chosen[0])
    shown = (request, chosen, larger)
    text = json.dumps(as_json(*shown)) + "\n" if arguments.format == "json" else as_text(*shown)
    write_or_show(text, arguments.output)
    if arguments.picture:
        _draw(request, space, chosen, arguments.picture)


def _choose(request: Request, space: Space) -> list[Shown]:
    """The fastest that fit, by the exact count; of those that differ in little, the best."""
    chosen: list[Shown] = []
    known: set[tuple] = set()
    tries = 0
    with progress_bar("searching", len(space.candidates)) as advance:
        for proposal in fastest(space, request.memory * NEAR, looked_at=advance):
            layout = proposal.layout
            kind = (*layout[:3], layout.schedule, layout.num_microbatches, layout.remat)
            twin = _twin(proposal, chosen)
            if twin is None and (
                len(chosen) == request.num_shown or tries >= _TRIES * request.num_shown + 20
            ):
                break
            if kind in known or faults(with_layout(request.config, layout)):
                continue
            if twin is not None:
                chosen[twin] = chosen[twin].also(layout.schedule)
            else:
                shown = _counted(request, proposal)
                tries += 1
                if shown.total > request.memory:
                    continue
                chosen.append(shown)
            known.add(kind)
    return chosen


def _twin(proposal: Proposal, chosen: list[Shown]) -> int | None:
    """Which of those differs from it in the name of the schedule alone."""
    alike = (number for number, shown in enumerate(chosen) if are_alike(proposal, shown.proposal))
    return next(alike, None)


def _larger(request: Request, space: Space, best: Shown) -> list[Shown]:
    """What would be faster, but is too large by the exact count."""
    found = faster_but_larger(space, best.proposal, request.memory)[:_MOST_LARGER]
    return [shown for proposal in found if (shown := _counted(request, proposal)).total > request.memory]


def _least(request: Request, space: Space) -> list[Shown]:
    """The layouts that hold least, the fastest first."""
    found: list[Shown] = []
    for proposal in sorted(smallest(space, _MOST_SMALLEST), key=rank):
        if faults(with_layout(request.config, proposal.layout)):
            continue
        twin = _twin(proposal, found)
        if twin is None:
            found.append(_counted(request, proposal))
        else:
            found[twin] = found[twin].also(proposal.layout.schedule)
    return found


def _what_would_fit(request: Request, smallest_ones: list[Shown]) -> str:
    """The least that is needed, and how."""
    devices = counted(request.task.num_devices, "device")
    start = f"--memory: no layout of {request.file} on {devices} fits into {format_memory(request.memory)}"
    least = min(smallest_ones, key=lambda shown: shown.total, default=None)
    if least is None:
        reasons = "; ".join(meshes_left_out(request.task))
        return (
            f"--devices {request.task.num_devices}: no mesh of so many can run {request.file}: {reasons}; "
            "use another number"
        )
    flags = " ".join(flags_of(request, least.proposal.layout))
    return (
        f"{start}: the least is {format_memory(least.total)}, with {flags}; give more devices or memory, "
        "a smaller --global-batch, or a shorter --sequence-length"
    )


def _counted(request: Request, proposal: Proposal) -> Shown:
    """With its bytes as training counts them, which loads JAX, on the CPU, whatever else there is."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    with leaving_at_once("jaxpipe plan"):
        from jaxpipe.training.planned_memory import planned_memory

        memory = planned_memory(with_layout(request.config, proposal.layout), request.platform)
    parts = {
        "weights and moments": memory.weights + memory.moments,
        "batch and tables": memory.arguments,
        "weights in compute dtype": memory.compute_weights,
        "gradient accumulators": memory.accumulators,
        "stash": memory.stash,
        "messages": memory.messages,
        "work of a tick": max(memory.work.values()),
    }
    if memory.after_ticks > memory.ticks:
        del parts["weights in compute dtype"], parts["work of a tick"]
        parts["sums after the ticks"] = memory.reduction
    return Shown(proposal, parts, memory.total)


def _find_picture_faults(picture: str | None) -> list[str]:
    if picture is None:
        return []
    if Path(picture).suffix != ".svg":
        return [f"--picture {picture!r} must end with .svg; name another file"]
    return find_file_faults(picture, option="--picture")


def _draw(request: Request, space: Space, chosen: list[Shown], picture: str) -> None:
    with progress_bar("drawing the frontier", len(_SHARES)) as advance:
        proposals = []
        for share in _SHARES:
            proposals += frontier(space, [share * request.memory])
            advance(1)
    points, best = points_of(request, proposals, chosen)
    heading = f"{Path(request.file).name} on {request.task.num_devices} x {request.hardware.kind}"
    drawn = draw_frontier(points, limit=request.memory / 1e9, best=best, heading=heading)
    write(drawn, picture, option="--picture")
