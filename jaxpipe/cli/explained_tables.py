"""What ``jaxpipe explain`` says of a step, as sentences and tables; times in seconds."""

from collections import Counter
from collections.abc import Iterator
from statistics import median

from jaxpipe.pictures import Table, Timed, what_follows
from jaxpipe.planning.explanation import (
    Explanation,
    Spread,
    shares,
    spread_of_actions,
    spread_of_ends,
    spread_of_exchanges,
    spread_of_overhead,
)
from jaxpipe.schedules import Cause
from jaxpipe.schedules.costs import cost_of

NUM_LONGEST = 8


def sentences(explanation: Explanation) -> Iterator[str]:
    """What ran, and what its marks cost."""
    trace, run = explanation.trace, explanation.trace.run
    mesh = " x ".join(f"{axis} {size}" for axis, size in run.get("mesh", {}).items())
    yield (
        f"Step {trace.step}: {trace.schedule.name} of {trace.schedule.num_ranks} ranks and "
        f"{trace.schedule.num_microbatches} microbatches in {trace.num_ticks} ticks, "
        f"remat {run.get('remat')}, {mesh} on {run.get('device_kind')}."
    )
    yield (
        f"It took {trace.step_seconds:.4g} s: {trace.before:.4g} before its ticks, "
        f"{explanation.measured.makespan:.4g} in them, {trace.after:.4g} after them."
    )
    if trace.plain_seconds:
        plain = median(trace.plain_seconds)
        yield (
            f"Without marks a step took {plain:.4g} s (median of {len(trace.plain_seconds)}): this one, with "
            f"marks, {trace.step_seconds / plain:.3f} times as long."
        )
        if trace.step_seconds < plain:
            yield (
                "Marks take time, so that it took less is noise: the machine was busy with something else "
                "during one or the other; compare with care."
            )
    else:
        yield "No step before it was timed without marks, so that nobody knows what the marks cost."
    if not trace.is_warm:
        yield "The program with marks had not run before: its first ticks may be slow."
    error = run.get("clocks_differ_by_at_most", 0)
    if error:
        yield f"Its hosts' clocks may differ by {error:.2g} s."


def step_table(explanation: Explanation) -> Table:
    """The step as a whole."""
    predicted, measured = explanation.predicted, explanation.measured
    rows = [
        ("makespan", predicted.makespan, measured.makespan),
        ("ideal", predicted.ideal, measured.ideal),
        ("bubble", predicted.bubble, measured.bubble),
        ("longest rank span", predicted.longest_rank_span, measured.longest_rank_span),
    ]
    cells = [(name, _number(one), _number(other), _ratio(other, one)) for name, one, other in rows]
    cells.insert(
        3, _in_percent("bubble of the makespan", predicted.bubble_fraction, measured.bubble_fraction)
    )
    return Table(("", "predicted", "measured", "difference"), tuple(cells))


def action_table(explanation: Explanation) -> Table:
    """Each kind of action, the ends, the exchange, and what a tick costs besides."""
    trace, costs = explanation.trace, explanation.costs
    rows: list[tuple[str, ...]] = []
    for kind, spread in spread_of_actions(trace).items():
        found = [cost_of(action, costs) for action in explanation.predicted.start if action.kind is kind]
        rows.append((str(kind), _number(median(found)), *_spread(spread)))
    if ends := spread_of_ends(trace):
        found = [until - since for since, until in explanation.predicted.ends]
        rows.append(("embedding and head", _number(median(found)) if found else "0", *_spread(ends)))
    if exchange := spread_of_exchanges(trace):
        rows.append(("exchange", "", *_spread(exchange)))
    rows.append(("part of a tick that is empty", "", *_spread(spread_of_overhead(trace))))
    rows.append(("each tick besides", _number(explanation.transfer), *[""] * 4))
    return Table(("", "predicted", "measured", "least", "most", "times"), tuple(rows))


def share_table(explanation: Explanation) -> Table:
    """Actions, ends and idle time by cause."""
    predicted = shares(explanation.trace, explanation.predicted)
    measured = shares(explanation.trace, explanation.measured)
    rows = []
    for name, share in measured.items():
        if share or predicted[name]:
            what = f"idle: {name}" if name in set(map(str, Cause)) else name
            rows.append(_in_percent(what, predicted[name], share))
    return Table(("", "predicted", "measured", "difference"), tuple(rows))


def rank_table(explanation: Explanation) -> Table:
    """Work and idle time of each rank."""
    predicted, measured = explanation.predicted, explanation.measured
    rows: list[tuple[str, ...]] = []
    for rank, (one, other) in enumerate(zip(predicted.work, measured.work, strict=True)):
        waits = predicted.makespan - one, measured.makespan - other
        rows.append(
            (f"rank {rank}", *map(_number, (one, other, *waits)), f"{waits[1] / measured.makespan:.1%}")
        )
    header = ("", "work predicted", "measured", "idle predicted", "measured", "of its time")
    return Table(header, tuple(rows))


def idle_table(explanation: Explanation) -> Table:
    """The causes that occur."""
    spent: Counter[tuple[int, Cause]] = Counter()
    for idle in explanation.measured.idle:
        spent[idle.rank, idle.cause] += idle.end - idle.start  # type: ignore[assignment]
    causes = [cause for cause in Cause if any(found is cause for _, found in spent)]
    rows = (
        (f"rank {rank}", *(_number(spent[rank, cause]) for cause in causes))
        for rank in range(explanation.trace.schedule.num_ranks)
    )
    return Table(("", *causes), tuple(rows))


def long_waits_table(explanation: Explanation) -> Table:
    """The longest stretches in which a rank was idle for one cause, and what came next."""
    measured = Timed("measured", explanation.trace.schedule, explanation.measured)
    longest = sorted(explanation.measured.idle, key=lambda idle: idle.start - idle.end)[:NUM_LONGEST]
    rows = (
        (
            f"rank {idle.rank}",
            _number(idle.start),
            _number(idle.end - idle.start),
            str(idle.cause),
            what_follows(idle, measured),
        )
        for idle in longest
    )
    return Table(("", "from", "seconds", "cause", "before"), tuple(rows))


def _in_percent(name: str, predicted: float, measured: float) -> tuple[str, str, str, str]:
    points = round(100 * (measured - predicted), 1) + 0.0  # no minus before a zero
    return name, f"{predicted:.1%}", f"{measured:.1%}", f"{points:+.1f} points"


def _spread(spread: Spread) -> tuple[str, str, str, str]:
    return _number(spread.median), _number(spread.least), _number(spread.most), str(spread.count)


def _number(seconds: float) -> str:
    return f"{seconds:.4g}" if abs(seconds) >= 1e-7 else "0"


def _ratio(one: float, other: float) -> str:
    return f"{one / other - 1:+.1%}" if other > 0 else ""
