"""What ``jaxpipe profile`` prints: medians, and how far the rounds lie apart."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from jaxpipe.cli.terminal import draw_table
from jaxpipe.config import MeshConfig
from jaxpipe.pictures import Table
from jaxpipe.planning.costs_file import REMATS, MeasuredCosts

if TYPE_CHECKING:
    from jaxpipe.profiling.measure import Profile
    from jaxpipe.profiling.timing import Seconds

_KINDS = ("F", "B", "W", "BW", "R")


def profile_lines(measured: "Profile", mesh: MeshConfig, *, num_rounds: int) -> Iterator[str]:
    """Which devices; a table of actions, one of the rest, and what the figures lack."""
    costs = measured.costs
    yield (
        f"{costs.num_devices} x {costs.device_kind} ({costs.platform}), {costs.compute_dtype}, "
        f"{costs.tokens} tokens a microbatch in sequences of {costs.sequence_length}, tp {costs.tp}"
    )
    yield f"medians of {num_rounds} rounds, and half of how far these lie apart"
    yield ""
    yield from draw_table(_actions(costs, measured.spread))
    yield ""
    yield from draw_table(_others(costs, measured.spread))
    yield from _notes(costs, mesh)


def _actions(costs: MeasuredCosts, spread: "Mapping[str, Seconds]") -> Table:
    lengths = {"layer": "1 layer"}
    if costs.stage_layers > 1:
        lengths["stage"] = f"{costs.stage_layers} layers"
    rows = [
        (f"remat {remat}, {words}", *(_shown(spread[f"{length}.{remat}.{kind}"]) for kind in _KINDS))
        for remat in REMATS
        for length, words in lengths.items()
    ]
    return Table(("", *_KINDS), tuple(rows))


def _others(costs: MeasuredCosts, spread: "Mapping[str, Seconds]") -> Table:
    names = {
        "head": "head, forward and backward of a microbatch, whole",
        "embedding": "embedding, its look-up or its gradient, whole",
        "transfer": f"message to a neighbour, {costs.message_bytes} bytes",
        "tick": "empty tick",
        "update_per_parameter": "optimizer, a parameter",
    }
    rows = [(words, _shown(spread[name])) for name, words in names.items() if name in spread]
    for number, times in enumerate(costs.sharing[1:], start=2):
        if number % costs.tp == 0 and number > costs.tp:
            rows.append((f"an action while {number} devices act, over one alone", f"{times:.2f}"))
    return Table(("", "seconds"), tuple(rows))


def _notes(costs: MeasuredCosts, mesh: MeshConfig) -> Iterator[str]:
    wanted = mesh.dp * mesh.pp * mesh.tp
    if costs.num_devices < wanted:
        yield ""
        yield (
            f"the mesh wants {wanted} devices, but there are {costs.num_devices}: what more of them do to "
            "each other is not measured"
        )
    if costs.transfer == 0:
        yield ""
        yield "no message was timed, since a single rank sends none: transfer is 0 in the file"


def _shown(seconds: "Seconds") -> str:
    """Such as ``5.35 ms ±8%``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if seconds.median >= size or unit == "ns":
            break
    half = (seconds.high - seconds.low) / 2 / seconds.median
    return f"{seconds.median / size:.3g} {unit} ±{min(half, 9.99):.0%}"
