"""A measured step beside the one that the simulator predicts, and where the time of both went.

The prediction runs the same order in the same ticks. What its actions cost comes from a file of costs, or is
the median of what they took in the step itself, stage by stage: then it says what the step would have been,
had every action of a stage taken equally long and every rank waited for its neighbours alone.

A tick's own costs, besides its action and the ends, are part of ``transfer``, which the simulator adds to
each tick: the exchange from when all neighbours are there, and the time until the next part begins.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from statistics import median

from jaxpipe.errors import InputError
from jaxpipe.planning.costs_file import MeasuredCosts, action_seconds
from jaxpipe.planning.measured import measured
from jaxpipe.planning.measured_costs import differences
from jaxpipe.planning.schedule_costs import message_seconds, remat_of
from jaxpipe.planning.tick_file import TickTrace
from jaxpipe.schedules import Action, Cause, Costs, Kind, Simulation, simulate
from jaxpipe.schedules.costs import LEAST

WORK_AT_ENDS = "embedding and head"


@dataclass(frozen=True)
class Explanation:
    """``source`` says where the costs of the prediction are from; they are in seconds."""

    trace: TickTrace
    measured: Simulation
    predicted: Simulation
    costs: Costs
    transfer: float
    source: str


@dataclass(frozen=True)
class Spread:
    """Of what was measured several times, in seconds."""

    count: int
    median: float
    least: float
    most: float


def explain(trace: TickTrace, costs: MeasuredCosts | None = None) -> Explanation:
    """``InputError`` if the costs are those of something else."""
    if costs is None:
        source, (found, transfer) = "the medians of this step", _costs_of(trace)
    else:
        source, (found, transfer) = "the file of costs", _costs_from(trace, costs)
    predicted = simulate(
        trace.schedule,
        costs=found,
        transfer=transfer,
        sync="neighbor",
        transfer_ticks=trace.transfer_ticks,
        specialised=trace.specialised,
    )
    return Explanation(trace, measured(trace), predicted, found, transfer, source)


def spread_of_actions(trace: TickTrace) -> dict[Kind, Spread]:
    """Of each kind that occurs, all stages together."""
    seconds = _action_seconds(trace)
    return {
        kind: _spread([second for action, second in seconds.items() if action.kind is kind])
        for kind in Kind
        if any(action.kind is kind for action in seconds)
    }


def spread_of_ends(trace: TickTrace) -> Spread | None:
    """Of what all ranks do together in a tick, from when the last one is there until all are done."""
    found = [seconds for _, seconds in _seconds_at_ends(trace)]
    return _spread(found) if found else None


def spread_of_exchanges(trace: TickTrace) -> Spread | None:
    """From when a rank and its neighbours are there; None of a single rank."""
    found = [*_exchange_seconds(trace)]
    return _spread(found) if found else None


def spread_of_overhead(trace: TickTrace) -> Spread:
    """Of a part of a tick in which nothing is done: what it costs to come by, with its mark."""
    return _spread([*_empty_seconds(trace)] or [0.0])


def shares(trace: TickTrace, simulation: Simulation) -> dict[str, float]:
    """Of the time of all ranks: each kind of action, the ends, idle time by its cause; they add up to 1."""
    total = simulation.makespan * trace.schedule.num_ranks
    spent = dict.fromkeys([*map(str, Kind), WORK_AT_ENDS, *map(str, Cause)], 0.0)
    for action, start in simulation.start.items():
        spent[action.kind] += simulation.end[action] - start
    for rank in range(trace.schedule.num_ranks):
        spent[WORK_AT_ENDS] += sum(until - since for since, until in simulation.ends_of(rank))
    waits = dict.fromkeys(map(str, Cause), 0.0)
    for idle in simulation.idle:
        waits[idle.cause] += idle.end - idle.start
    return {name: seconds / total for name, seconds in (spent | waits).items()}


def _costs_of(trace: TickTrace) -> tuple[Costs, float]:
    by_stage: dict[tuple[Kind, int], list[float]] = {}
    for action, found in _action_seconds(trace).items():
        by_stage.setdefault((action.kind, action.stage), []).append(found)
    kinds = {
        kind: tuple(
            median(by_stage[kind, stage]) if (kind, stage) in by_stage else None
            for stage in range(trace.schedule.placement.num_stages)
        )
        for kind in Kind
    }
    embedding, head = _ends_of(trace)
    exchanges, empty = [*_exchange_seconds(trace)], [*_empty_seconds(trace)]
    transfer = (median(exchanges) if exchanges else 0.0) + (median(empty) if empty else 0.0)
    return _as_costs(kinds, embedding=embedding, head=head), transfer


def _costs_from(trace: TickTrace, costs: MeasuredCosts) -> tuple[Costs, float]:
    run = trace.run
    model = {name: run["model"].get(name) for name in {**costs.model, **run["model"]}}
    sizes = {
        "compute_dtype": run.get("compute_dtype"),
        "sequence_length": run.get("sequence_length"),
        "tokens": run.get("microbatch_tokens"),
        "tp": run["mesh"].get("tp", 1),
    }
    faults = [*differences(costs, model, sizes)]
    if faults:
        raise InputError(
            f"{'; '.join(faults)}; measure them with `jaxpipe profile` and the run's config.yaml"
        )
    layers, recomputes = run["layers_per_stage"], trace.schedule.recomputes
    slower = _sharing(trace, costs)

    def seconds(kind: Kind) -> tuple[float, ...]:
        remat = remat_of(kind, remat=str(run["remat"]), recomputes=recomputes)
        return tuple(
            slower * action_seconds(costs, kind, remat=remat, num_layers=number) for number in layers
        )

    used = {action.kind for _, action in trace.schedule.actions()}
    kinds = {kind: seconds(kind) if kind in used else (None,) * len(layers) for kind in Kind}
    ends = {
        "head": slower * costs.head / costs.tp,
        "embedding": slower * costs.embedding / costs.tp,
    }
    return _as_costs(kinds, **ends), message_seconds(costs, sync="neighbor")


def _sharing(trace: TickTrace, costs: MeasuredCosts) -> float:
    """How much longer actions take since as many devices act at once as do in the mean of all ticks."""
    acting = sum(action is not None for actions in trace.actions for action in actions) / trace.num_ticks
    devices = trace.run.get("mesh", {})
    at_once = round(acting * devices.get("dp", 1) * devices.get("tp", 1))
    return costs.sharing[min(max(at_once, 1), len(costs.sharing)) - 1]


def _as_costs(kinds: Mapping[Kind, tuple[float | None, ...]], *, head: float, embedding: float) -> Costs:
    """Of a stage that knows its BW alone, B and W have half of it each."""
    halves = tuple(None if both is None else both / 2 for both in kinds[Kind.BW])
    given: dict[str, tuple[float, ...]] = {}
    for kind in (kind for kind in Kind if kind is not Kind.BW):
        others = halves if kind in (Kind.B, Kind.W) else (None,) * len(halves)
        given[kind] = tuple(
            max(own or half or LEAST, LEAST) for own, half in zip(kinds[kind], others, strict=True)
        )
    known = {field.name for field in fields(Costs)}
    return Costs(
        **{kind: value for kind, value in given.items() if kind in known},
        head=head if head >= LEAST else 0.0,
        embedding=embedding if embedding >= LEAST else 0.0,
    )


def _ends_of(trace: TickTrace) -> tuple[float, float]:
    """Seconds of a lookup and of the head, if one device did them alone."""
    found = [*_seconds_at_ends(trace)]
    lookups = [seconds / len(ends) for ends, seconds in found if "head" not in ends]
    lookup = median(lookups) if lookups else 0.0
    heads = [
        max(seconds - lookup * (len(ends) - ends.count("head")), 0.0) / ends.count("head")
        for ends, seconds in found
        if "head" in ends
    ]
    num_ranks = trace.schedule.num_ranks
    return num_ranks * lookup, num_ranks * (median(heads) if heads else 0.0)


def _seconds_at_ends(trace: TickTrace) -> Iterator[tuple[tuple[str, ...], float]]:
    for ends, row in zip(trace.ends, trace.marks, strict=True):
        if ends:
            yield ends, max(marks.ends for marks in row) - max(marks.start for marks in row)


def _exchange_seconds(trace: TickTrace) -> Iterator[float]:
    num_ranks = trace.schedule.num_ranks
    if num_ranks == 1:
        return
    for row in trace.marks:
        for rank, own in enumerate(row):
            there = max(row[(rank + hop) % num_ranks].action for hop in (-1, 0, 1))
            yield max(own.exchange - there, 0.0)


def _empty_seconds(trace: TickTrace) -> Iterator[float]:
    for ends, row in zip(trace.ends, trace.marks, strict=True):
        if not ends:
            yield from (marks.ends - marks.start for marks in row)


def _action_seconds(trace: TickTrace) -> dict[Action, float]:
    return {
        action: marks.action - marks.ends
        for actions, row in zip(trace.actions, trace.marks, strict=True)
        for action, marks in zip(actions, row, strict=True)
        if action is not None
    }


def _spread(values: list[float]) -> Spread:
    return Spread(len(values), median(values), min(values), max(values))
