"""Measure a model's costs on the devices at hand, with the executor's own ticks.

    F, B, W, BW       one rank acts; seconds of the action alone, without its tick
    R                 F of remat none: what a layer keeps, made once more from its input
    head, embedding   on the rows of the vocabulary that a device of the configuration has, times as many
                      devices as share them: what is done for every row is right for the whole, and what
                      every device does for all tokens (norm, look-up) counts once for each of them
    transfer          half of what both messages of a tick, one to each neighbour, add to it
    tick              all ranks idle
    sharing           several ranks run the same BW of one layer, against one of them
    update            the optimizer, on the weights of one layer and of the vocabulary on one device

All actions and ends take turns, round by round. Not measured: what ZeRO and the sum over dp communicate, what
the ends exchange over pp, and messages between hosts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from operator import itemgetter
from typing import NamedTuple

import jax
import numpy as np

from jaxpipe.errors import InputError
from jaxpipe.pipeline.remat import POLICIES, Remat
from jaxpipe.planning.costs_file import REMATS, ActionSeconds, MeasuredCosts
from jaxpipe.profiling.rows import NUM_FILLING_ROWS, What
from jaxpipe.profiling.ticks import Bench, Sizes, Stopwatch, make_bench, make_stopwatch
from jaxpipe.profiling.timing import Seconds, seconds_each, seconds_more
from jaxpipe.profiling.update import time_update
from jaxpipe.training.optimizer import AdamW

NUM_ROWS, NUM_MORE_ROWS = 130, 512
"""Rows of a program, and how many more that one has that tells what an empty row costs."""

_ACTIONS: tuple[What, ...] = ("F", "B", "W", "BW")
_ENDS: tuple[What, ...] = ("head", "embed", "unembed")
_ALL_MEASURED = 8
"""Up to so many ranks the sharing of every number is measured; above, that of powers of two."""


@dataclass(frozen=True)
class Profile:
    """The costs, and of each the smallest and the largest of the rounds, by name (``layer.full.F``)."""

    costs: MeasuredCosts
    spread: dict[str, Seconds]


class _Shared(NamedTuple):
    """What was measured on all ranks at once."""

    sharing: tuple[float, ...]
    tick: Seconds
    transfer: Seconds | None


def num_parts(stage_layers: int, *, num_rounds: int) -> int:
    """How often ``measure`` advances: for each program that is compiled, and for each round."""
    return len(REMATS) * (2 if stage_layers > 1 else 1) + num_rounds + 2


def measure(
    sizes: Sizes,
    devices: Sequence[jax.Device],
    *,
    stage_layers: int,
    vocabulary_shards: int,
    optimizer: AdamW,
    num_rounds: int,
    advance: Callable[[int], None],
) -> Profile:
    """The profile of a layer and of a stage; ``devices`` are whole ranks of ``sizes.tp``.

    vocabulary_shards: devices that share the vocabulary in the configuration. advance: called with 1 when one
    more of ``num_parts`` is done.

    Raises:
        InputError: a device has too little memory.
    """
    with _enough_memory():
        spread = _time_actions(
            {
                name: make_bench(sizes, devices[: sizes.tp], num_layers=num_layers)
                for name, num_layers in (("layer", 1), ("stage", stage_layers))
                if name == "layer" or num_layers > 1
            },
            num_rounds=num_rounds,
            advance=advance,
        )
        together = make_bench(sizes, devices, num_layers=1)
        shared = _time_together(together, num_rounds=num_rounds)
        advance(1)
        update = time_update(optimizer, together.params, num_rounds=num_rounds)
        advance(1)
    spread["head"] = spread["head"].scaled(vocabulary_shards)
    both = (spread.pop("embed"), spread.pop("unembed"))
    spread["embedding"] = Seconds(*(sum(pair) / 2 * vocabulary_shards for pair in zip(*both, strict=True)))
    spread |= {"tick": shared.tick, "update_per_parameter": update}
    if shared.transfer is not None:
        spread["transfer"] = shared.transfer
    layer = _actions("layer", spread)
    shares = sizes.tp if sizes.sequence_parallel else 1
    tokens = sizes.batch * sizes.sequence_length
    costs = MeasuredCosts(
        platform=devices[0].platform,
        device_kind=devices[0].device_kind,
        num_devices=len(devices),
        model=asdict(sizes.model),
        compute_dtype=sizes.compute_dtype,
        sequence_length=sizes.sequence_length,
        tokens=tokens,
        tp=sizes.tp,
        stage_layers=stage_layers,
        layer=layer,
        stage=_actions("stage", spread) if stage_layers > 1 else layer,
        head=spread["head"].median,
        embedding=spread["embedding"].median,
        message_bytes=tokens // shares * sizes.model.hidden_size * np.dtype(sizes.compute_dtype).itemsize,
        transfer=0.0 if shared.transfer is None else shared.transfer.median,
        tick=shared.tick.median,
        update_per_parameter=update.median,
        sharing=shared.sharing,
    )
    return Profile(costs, spread)


def _time_actions(
    benches: Mapping[str, Bench], *, num_rounds: int, advance: Callable[[int], None]
) -> dict[str, Seconds]:
    """Of each length and remat the actions; and, once, the ends of the pipe."""
    watches: dict[tuple[str, Remat], Stopwatch] = {}
    for name, bench in benches.items():
        for remat in POLICIES:
            watches[name, remat] = make_stopwatch(bench, kinds=_ACTIONS, remat=remat, num_rows=NUM_ROWS)
            advance(1)
    asked = [(key, what) for key in watches for what in _ACTIONS]
    asked[:0] = [(asked[0][0], end) for end in _ENDS]
    found = seconds_each(
        lambda name, count: watches[name[0]].run(name[1], count, 1),
        asked,
        num_rounds=num_rounds,
        most=NUM_ROWS - NUM_FILLING_ROWS,
        program_of=itemgetter(0),
        advance=advance,
    )
    return {what if what in _ENDS else ".".join((*key, what)): found[key, what] for key, what in asked}


def _time_together(bench: Bench, *, num_rounds: int) -> _Shared:
    """What depends on how many ranks there are."""

    def watch(num_rows: int, *, sends: bool = False) -> Stopwatch:
        return make_stopwatch(bench, kinds=("F", "BW"), remat="full", num_rows=num_rows, sends=sends)

    silent, longer = watch(NUM_ROWS), watch(NUM_ROWS + NUM_MORE_ROWS)
    watches = [silent, longer, *([watch(NUM_ROWS, sends=True)] if bench.num_ranks > 1 else [])]
    more = seconds_more(lambda each: each.run("BW", 0, 1), watches, num_rounds=num_rounds)
    transfer = None
    if bench.num_ranks > 1:
        transfer = more[watches[-1]].scaled(1 / (2 * NUM_ROWS))
    return _Shared(
        sharing=_sharing(silent, bench.num_ranks, tp=bench.sizes.tp, num_rounds=num_rounds),
        tick=more[longer].scaled(1 / NUM_MORE_ROWS),
        transfer=transfer,
    )


def _sharing(watch: Stopwatch, num_ranks: int, *, tp: int, num_rounds: int) -> tuple[float, ...]:
    """Of 1, 2, ... devices: those of one rank are what was measured, so they count as one."""
    counts = [
        count
        for count in range(1, num_ranks + 1)
        if num_ranks <= _ALL_MEASURED or count in (num_ranks, 1 << (count.bit_length() - 1))
    ]
    seconds = seconds_each(
        lambda ranks, count: watch.run("BW", count, ranks),
        counts,
        num_rounds=num_rounds,
        most=NUM_ROWS - NUM_FILLING_ROWS,
    )
    times = [seconds[count].median / seconds[1].median for count in counts]
    devices = np.arange(1, num_ranks * tp + 1)
    return tuple(np.interp(devices, [count * tp for count in counts], times).tolist())


def _actions(name: str, spread: dict[str, Seconds]) -> dict[str, ActionSeconds]:
    """Of each remat; also adds R to ``spread``."""
    found = {}
    for remat in REMATS:
        spread[f"{name}.{remat}.R"] = spread[f"{name}.none.F"]
        kinds = [field.name for field in fields(ActionSeconds)]
        found[remat] = ActionSeconds(**{kind: spread[f"{name}.{remat}.{kind}"].median for kind in kinds})
    return found


@contextmanager
def _enough_memory() -> Iterator[None]:
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise InputError(
            "a device has too little memory for the layers that are measured; use --layers 1, a smaller "
            "microbatch, or more of mesh.tp"
        ) from error
