"""Traces without a run: a machine of ticks in a few lines, whose parts take times that chance decides."""

import dataclasses
import random

from jaxpipe.planning.costs_file import REMATS, ActionSeconds, MeasuredCosts
from jaxpipe.planning.tick_file import Marks, TickTrace
from jaxpipe.schedules import Action, Kind, assign_ticks, build, fuse_backward, split_backward

RUN = {
    "model": {"hidden_size": 8},
    "mesh": {"dp": 1, "pp": 4, "tp": 1},
    "remat": "full",
    "compute_dtype": "float32",
    "sequence_length": 16,
    "microbatch_tokens": 32,
    "platform": "cpu",
    "device_kind": "cpu",
}
SECONDS = {Kind.F: 1.0, Kind.B: 1.3, Kind.W: 0.9, Kind.BW: 2.2}
END, TRANSFER, MARK = 0.25, 0.125, 0.0078125


def make_trace(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    *,
    jitter: float = 0.0,
    fuse: bool = False,
    seed: int = 0,
) -> TickTrace:
    """Nobody leaves the ends before all are there, nor an exchange before its neighbours are."""
    chance = random.Random(seed)
    schedule = build(name, num_ranks=num_ranks, num_microbatches=num_microbatches)
    schedule = fuse_backward(schedule) if fuse else split_backward(schedule)
    ticks = assign_ticks(schedule)
    ends = _ends(ticks, schedule.placement.num_stages)
    at = {
        (tick, schedule.placement.rank(action.stage, action.pipe)): action for action, tick in ticks.items()
    }
    transfer = TRANSFER if num_ranks > 1 else 0.0
    num_ticks = 1 + max(*ticks.values(), *ends)
    rows: list[tuple[Marks, ...]] = []
    now = [chance.random() * jitter for _ in range(num_ranks)]
    for tick in range(num_ticks):
        # all leave the ends at once
        together = max(now) + END * len(ends.get(tick, ()))
        met = [(together if tick in ends else time) + MARK + chance.random() * jitter * MARK for time in now]
        acted = [
            time
            + MARK
            + (SECONDS[at[tick, rank].kind] * (1 + jitter * chance.random()) if (tick, rank) in at else 0)
            for rank, time in enumerate(met)
        ]
        left = [
            max(acted[(rank + hop) % num_ranks] for hop in (-1, 0, 1))
            + transfer * (1 + jitter * chance.random())
            for rank in range(num_ranks)
        ]
        rows.append(tuple(map(Marks, now, met, acted, left)))
        now = left
    return TickTrace(
        step=4,
        schedule=schedule,
        transfer_ticks=1,
        specialised=False,
        actions=tuple(tuple(at.get((tick, rank)) for rank in range(num_ranks)) for tick in range(num_ticks)),
        ends=tuple(tuple(ends.get(tick, ())) for tick in range(num_ticks)),
        marks=tuple(rows),
        processes=(0,) * num_ranks,
        before=0.5,
        after=0.25,
        step_seconds=1.0,
        plain_seconds=(0.8, 0.9),
        is_warm=True,
        run=RUN | {"layers_per_stage": [1] * schedule.placement.num_stages},
    )


def costs_for(trace: TickTrace, **changes: object) -> MeasuredCosts:
    """A file of costs of the same run, unless ``changes`` say otherwise."""
    stage = ActionSeconds(F=2.0, B=2.5, W=1.5, BW=4.0, R=1.0)
    of_each = dict.fromkeys(REMATS, stage)
    given = MeasuredCosts(
        platform="cpu",
        device_kind="cpu",
        num_devices=4,
        model=dict(trace.run["model"]),
        compute_dtype="float32",
        sequence_length=16,
        tokens=32,
        tp=1,
        stage_layers=1,
        layer=of_each,
        stage=of_each,
        head=1.0,
        embedding=0.5,
        message_bytes=1,
        transfer=0.1,
        tick=0.05,
        update_per_parameter=0.0,
        sharing=(1.0,),
    )
    return dataclasses.replace(given, **changes)  # type: ignore[arg-type]


def _ends(ticks: dict[Action, int], num_stages: int) -> dict[int, list[str]]:
    """What all ranks do together, by tick: the lookup with the first F, the others a tick behind."""
    found: dict[int, list[str]] = {}
    for action, tick in ticks.items():
        if action.kind is Kind.F and action.stage == 0:
            found.setdefault(tick, []).append("embed")
        if action.kind is Kind.F and action.stage == num_stages - 1:
            found.setdefault(tick + 1, []).append("head")
        if action.kind in (Kind.B, Kind.BW) and action.stage == 0:
            found.setdefault(tick + 1, []).append("unembed")
    return found
