"""Layouts as a table, with reasons and flags; as JSON; and as points of a picture."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from jaxpipe.cli.plan_request import Request
from jaxpipe.cli.terminal import draw_table
from jaxpipe.config.planned_layout import changed_keys
from jaxpipe.models.flops import flops_per_token
from jaxpipe.pictures import Table
from jaxpipe.pictures.frontier import Point
from jaxpipe.planning.layouts import Layout
from jaxpipe.planning.measured_costs import sharing_of
from jaxpipe.planning.reasons import meshes_left_out, why_slower
from jaxpipe.planning.search import Proposal


class Shown(NamedTuple):
    """A proposal with its bytes on a device as training counts them: by part, and at most at once.

    others: schedules that are the same here but for the name.
    """

    proposal: Proposal
    parts: Mapping[str, int]
    total: int
    others: tuple[str, ...] = ()

    def also(self, schedule: str) -> "Shown":
        """With one more schedule that is the same here."""
        return self._replace(others=(*self.others, schedule))


_BEFORE_A_GPU = (
    "JAX takes three quarters of a GPU by itself; XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 lets it take more.",
    "On a machine without GPUs --dry-run counts what attention holds on CPU, which is more than on a GPU.",
)

_HEADER = (
    "",
    "dp",
    "pp",
    "tp",
    "ZeRO",
    "schedule",
    "m",
    "ticks",
    "B, W",
    "remat",
    "step",
    "tokens/s",
    "MFU",
    "bubble",
    "bytes",
)


def as_text(request: Request, chosen: Sequence[Shown], larger: Sequence[Shown]) -> str:
    """All that there is to say."""
    lines = [*_headline(request), ""]
    rows = tuple(_row(request, number, shown) for number, shown in enumerate(chosen, 1))
    lines += [*draw_table(Table(_HEADER, rows)), "", *_losers(chosen), *_cautions(request, chosen)]
    lines += [*_too_large(request, chosen[0], larger), *_left_out(request), ""]
    lines += ["bytes of a device with the first:", *_bytes(chosen[0]), ""]
    layout = chosen[0].proposal.layout
    lines += ["run the first:", f"  python train.py {request.file} " + " ".join(flags_of(request, layout))]
    lines += ["", "or in the file:", *_yaml(request, layout)]
    if request.platform == "gpu":
        lines += ["", *_BEFORE_A_GPU]
    return "\n".join(lines) + "\n"


def as_json(request: Request, chosen: Sequence[Shown], larger: Sequence[Shown]) -> dict[str, Any]:
    """The same for a program; seconds and bytes."""
    best = chosen[0].proposal.time
    return {
        "model": request.file,
        "devices": request.task.num_devices,
        "device_kind": request.hardware.kind,
        "memory": request.memory,
        "times_are": "estimated" if request.costs is None else "predicted from measured costs",
        "layouts": [_entry(request, shown) | {"why": _why(shown, best)} for shown in chosen],
        "faster_but_too_large": [_entry(request, shown) for shown in larger],
        "meshes_left_out": dict(meshes_left_out(request.task)),
        "flags": flags_of(request, chosen[0].proposal.layout),
    }


def points_of(
    request: Request, proposals: Sequence[Proposal], chosen: Sequence[Shown]
) -> tuple[list[Point], Point]:
    """Points of the frontier, by formula, and of what is shown, as counted; and which is the best."""
    counted = [_point(request, shown.proposal, shown.total, known="counted") for shown in chosen]
    known = {shown.proposal.layout for shown in chosen}
    others = {
        proposal.layout: _point(request, proposal, proposal.bytes.total, known="by formula")
        for proposal in proposals
        if proposal.layout not in known
    }
    # which of those near the limit fit was counted; by formula none is on its wrong side
    limit = request.memory / 1e9
    fastest = counted[0].seconds
    kept = [point for point in others.values() if point.gigabytes > limit or point.seconds >= fastest]
    return [counted[0], *kept], counted[0]


def flags_of(request: Request, layout: Layout) -> list[str]:
    """For ``train.py`` after the file: what it says otherwise."""
    return [f"--{key} {_word(value)}" for key, value in _changed_keys(request, layout).items()]


def _changed_keys(request: Request, layout: Layout) -> dict[str, Any]:
    """What was asked for otherwise than the file has it, and the keys of the layout."""
    sizes = {
        "data.sequence_length": request.config.data.sequence_length,
        "train.global_batch_size": request.config.train.global_batch_size,
    }
    given = {key: value for key, value in sizes.items() if key in request.given}
    return given | changed_keys(request.config, layout)


def format_memory(size: float) -> str:
    """In the units of data sheets: 80 GB are 80,000,000,000 bytes."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _headline(request: Request) -> Iterator[str]:
    task = request.task
    yield (
        f"{request.file} on {task.num_devices} x {request.hardware.kind} with "
        f"{format_memory(request.memory)} each, {task.global_batch} x {task.sequence_length} tokens a step, "
        f"{task.compute_dtype}"
    )
    if request.costs is None:
        yield "times are estimated from data sheets; `jaxpipe profile` measures costs, for --costs"
    else:
        yield f"times are predicted from costs measured on {request.costs.device_kind}"


def _row(request: Request, number: int, shown: Shown) -> tuple[str, ...]:
    layout, time = shown.proposal.layout, shown.proposal.time
    mfu = _mfu(request, time.total)
    return (
        str(number),
        str(layout.dp),
        str(layout.pp),
        str(layout.tp),
        str(layout.zero),
        _schedule(layout),
        str(layout.num_microbatches),
        str(layout.transfer_ticks),
        "fused" if layout.fuse_backward else "split",
        layout.remat,
        f"{time.total:.4g} s",
        f"{_tokens(request) / time.total:,.0f}",
        "-" if mfu is None else f"{mfu:.1%}",
        f"{time.bubble:.1%}",
        format_memory(shown.total),
    )


def _schedule(layout: Layout) -> str:
    return layout.schedule + (f":{layout.num_chunks}" if layout.num_chunks > 1 else "")


def _losers(chosen: Sequence[Shown]) -> Iterator[str]:
    best = chosen[0].proposal.time
    for number, shown in enumerate(chosen[1:], 2):
        yield f"{number}: fits, {_why(shown, best)}"
    for number, shown in enumerate(chosen, 1):
        if shown.others:
            yield f"{number}: {_listed(shown.others)} would be the same here"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _cautions(request: Request, chosen: Sequence[Shown]) -> Iterator[str]:
    """What measured costs cannot know."""
    if request.costs is None:
        return
    others = [number for number, shown in enumerate(chosen, 1) if not _is_as_profiled(request, shown)]
    if others:
        yield (
            f"times are reliable only at the profiled {request.costs.tokens} tokens a microbatch, which "
            f"{_listed([str(number) for number in others])} do not have: smaller ones take longer than said"
        )
    if any(times != 1 for times in sharing_of(request.costs)):
        yield (
            "devices share cores: the bubble is what waiting costs, not how long a rank waits, as others "
            "have its cores meanwhile"
        )


def _is_as_profiled(request: Request, shown: Shown) -> bool:
    """Whether its microbatches are as large as those that costs were measured with, if any were."""
    return request.costs is None or request.task.tokens(shown.proposal.layout) == request.costs.tokens


def _why(shown: Shown, best: Any) -> str:
    time = shown.proposal.time
    return "the fastest that fits" if time is best else why_slower(time, best)


def _too_large(request: Request, best: Shown, larger: Sequence[Shown]) -> Iterator[str]:
    for shown in larger:
        faster = best.proposal.time.total / shown.proposal.time.total - 1
        yield (
            f"{_name(shown.proposal.layout)}: would be {faster:.1%} faster, but needs "
            f"{format_memory(shown.total)} of {format_memory(request.memory)}"
        )


def _left_out(request: Request) -> Iterator[str]:
    for reason, meshes in meshes_left_out(request.task).items():
        more = f" and {len(meshes) - 3} more" if len(meshes) > 3 else ""
        yield f"no mesh of dp x pp x tp {', '.join(meshes[:3])}{more}: {reason}"


def _bytes(shown: Shown) -> Iterator[str]:
    for part, size in shown.parts.items():
        yield f"  {part:<26}{format_memory(size):>10}"
    yield f"  {'together':<26}{format_memory(shown.total):>10}"


def _yaml(request: Request, layout: Layout) -> Iterator[str]:
    keys = sorted(_changed_keys(request, layout).items(), key=lambda entry: entry[0].partition(".")[0])
    for section, entries in groupby(keys, key=lambda entry: entry[0].partition(".")[0]):
        yield f"  {section}:"
        for key, value in entries:
            yield f"    {key.partition('.')[2]}: {_word(value)}"


def _word(value: Any) -> str:
    """As YAML and flags both read it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _entry(request: Request, shown: Shown) -> dict[str, Any]:
    layout, time = shown.proposal.layout, shown.proposal.time
    return {
        **layout._asdict(),
        "step_seconds": time.total,
        "tokens_per_second": _tokens(request) / time.total,
        "mfu": _mfu(request, time.total),
        "bubble": time.bubble,
        "schedules_alike": list(shown.others),
        "tokens_as_profiled": None if request.costs is None else _is_as_profiled(request, shown),
        "seconds": time._asdict(),
        "bytes": shown.total,
        "bytes_by_part": dict(shown.parts),
    }


def _point(request: Request, proposal: Proposal, size: float, *, known: str) -> Point:
    layout, seconds = proposal.layout, proposal.time.total
    label = f"{_name(layout)}: {seconds:.4g} s, {format_memory(size)} ({known})"
    return Point(seconds, size / 1e9, label)


def _name(layout: Layout) -> str:
    return (
        f"dp {layout.dp} x pp {layout.pp} x tp {layout.tp}, {_schedule(layout)}, "
        f"m={layout.num_microbatches}, remat {layout.remat}, ZeRO {layout.zero}"
    )


def _tokens(request: Request) -> int:
    return request.task.global_batch * request.task.sequence_length


def _mfu(request: Request, seconds: float) -> float | None:
    if request.peak is None:
        return None
    flops = _tokens(request) * flops_per_token(request.task.model, request.task.sequence_length)
    return flops / seconds / (request.task.num_devices * request.peak)
