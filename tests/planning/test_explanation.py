"""A measured step beside the predicted one: its times are whole, and each wait has the cause that it has."""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest
from made_traces import END, SECONDS, TRANSFER, costs_for, make_trace

from jaxpipe.errors import InputError
from jaxpipe.planning.costs_file import REMATS, ActionSeconds
from jaxpipe.planning.explanation import explain, shares, spread_of_actions
from jaxpipe.planning.measured import measured
from jaxpipe.planning.tick_file import FORMAT, Marks, TickTrace, read_ticks, to_text
from jaxpipe.schedules import Cause, Kind, looped, parse_action, with_recompute
from jaxpipe.schedules.schedule import Schedule

SIZES = [
    ("gpipe", 4, 4),
    ("1f1b", 3, 5),
    ("zb_h1", 4, 8),
    ("interleaved", 2, 4),
    ("chimera", 4, 4),
    ("1f1b", 1, 3),
]


@pytest.mark.parametrize(("name", "p", "m"), SIZES)
@pytest.mark.parametrize("jitter", [0.0, 0.7])
def test_work_and_idle_time_of_each_rank_fill_the_makespan_without_a_gap(
    name: str, p: int, m: int, jitter: float
) -> None:
    explanation = explain(make_trace(name, p, m, jitter=jitter))
    for simulation in (explanation.measured, explanation.predicted):
        for rank, order in enumerate(explanation.trace.schedule.orders):
            spans = [(simulation.start[action], simulation.end[action]) for action in order]
            spans += simulation.ends_of(rank)
            spans += ((idle.start, idle.end) for idle in simulation.idle if idle.rank == rank)
            spans = sorted(span for span in spans if span[0] < span[1])
            assert spans[0][0] == 0
            assert spans[-1][1] == pytest.approx(simulation.makespan, rel=1e-12)
            assert [end for _, end in spans[:-1]] == pytest.approx(
                [start for start, _ in spans[1:]], rel=1e-12
            )
        assert sum(shares(explanation.trace, simulation).values()) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize(("name", "p", "m"), SIZES)
@pytest.mark.parametrize("fuse", [True, False])
def test_a_step_whose_actions_of_a_kind_take_equally_long_is_as_predicted(
    name: str, p: int, m: int, fuse: bool
) -> None:
    trace = make_trace(name, p, m, fuse=fuse)
    explanation = explain(trace)
    # a mark is 1 % of an F, and what it costs in a tick with ends is nobody's
    assert explanation.predicted.makespan == pytest.approx(explanation.measured.makespan, rel=0.02)
    if p > 1:
        one, other = (shares(trace, each) for each in (explanation.predicted, explanation.measured))
        at_ticks = {
            "transfer",
            "neighbor",
            "imbalance",
            "ends",
            "overhead",
        }  # one may end where another begins
        for what in {*one} - at_ticks:
            assert other[what] == pytest.approx(one[what], abs=0.03), what
        waits = [sum(each[what] for what in at_ticks) for each in (one, other)]
        assert waits[1] == pytest.approx(waits[0], abs=0.03)


def test_the_costs_of_a_trace_are_its_medians() -> None:
    explanation = explain(make_trace("zb_h1", 4, 8))
    for kind, spread in spread_of_actions(explanation.trace).items():
        assert spread.median == pytest.approx(SECONDS[kind], abs=0.01)
        assert getattr(explanation.costs, kind) == pytest.approx((spread.median,) * 4, rel=1e-9)
    assert explanation.costs.head == pytest.approx(4 * END, abs=0.05)
    assert explanation.costs.embedding == pytest.approx(4 * END, abs=0.05)
    assert explanation.transfer == pytest.approx(TRANSFER, abs=0.01)


def test_two_ranks_and_one_microbatch_by_hand() -> None:
    orders = (("0F0", "0BW0"), ("1F0", "1BW0"))
    schedule = Schedule("hand", looped(2), 1, tuple(tuple(map(parse_action, order)) for order in orders))
    rows = (
        # embed, then 0F0; rank 1 comes to the embedding first
        (("embed",), ("0F0", None), ((0.5, 1.0, 3.0, 3.5), (0.0, 1.0, 1.25, 3.5))),
        ((), (None, "1F0"), ((3.5, 3.75, 4.0, 7.0), (3.5, 4.0, 6.5, 7.0))),
        (("head",), (None, "1BW0"), ((7.0, 9.0, 9.0, 14.0), (7.0, 9.0, 13.0, 14.0))),
        ((), ("0BW0", None), ((14.0, 14.5, 17.5, 18.0), (14.0, 14.5, 15.0, 18.0))),
        (("unembed",), (None, None), ((18.0, 19.0, 19.0, 19.5), (18.0, 19.0, 19.0, 19.5))),
    )
    trace = dataclasses.replace(
        make_trace("1f1b", 2, 1, fuse=True),
        schedule=schedule,
        ends=tuple(row[0] for row in rows),
        actions=tuple(tuple(text and parse_action(text) for text in row[1]) for row in rows),
        marks=tuple(tuple(Marks(*marks) for marks in row[2]) for row in rows),
    )
    found = measured(trace)
    assert found.makespan == 19.5
    assert found.work == (0.5 + 2.0 + 2.0 + 3.0 + 1.0, 0.5 + 2.5 + 2.0 + 4.0 + 1.0)
    assert [(idle.rank, idle.start, idle.end, idle.cause) for idle in found.idle] == [
        (0, 0.0, 0.5, Cause.OVERHEAD),
        (0, 3.0, 7.0, Cause.DEPENDENCY),  # of 0BW0 on 1BW0, which has not even begun
        (0, 9.0, 13.0, Cause.DEPENDENCY),
        (0, 13.0, 14.0, Cause.TRANSFER),
        (0, 14.0, 14.5, Cause.OVERHEAD),
        (0, 17.5, 18.0, Cause.ENDS),
        (0, 19.0, 19.5, Cause.DRAIN),
        (1, 0.0, 0.5, Cause.DEPENDENCY),
        (1, 1.0, 3.0, Cause.DEPENDENCY),
        (1, 3.0, 3.5, Cause.TRANSFER),
        (1, 3.5, 4.0, Cause.OVERHEAD),
        (1, 6.5, 7.0, Cause.TRANSFER),
        (1, 13.0, 18.0, Cause.ENDS),
        (1, 19.0, 19.5, Cause.DRAIN),
    ]


def test_a_neighbor_with_a_longer_action_is_an_imbalance_in_both() -> None:
    trace = make_trace("1f1b", 2, 8)
    explanation = explain(trace)
    longest = max(
        explanation.measured.idle, key=lambda idle: (idle.cause is Cause.IMBALANCE, idle.end - idle.start)
    )
    assert longest.cause is Cause.IMBALANCE
    # at most what the longest kind takes longer than the shortest
    assert longest.end - longest.start <= SECONDS[Kind.B] - SECONDS[Kind.W] + 0.01


def test_a_file_of_costs_predicts_by_its_own_seconds() -> None:
    trace = make_trace("zb_h1", 4, 8)
    explanation = explain(trace, costs_for(trace))
    assert explanation.costs.F == (2.0,) * 4
    # a message each way, and the tick
    assert (explanation.costs.head, explanation.transfer) == (1.0, pytest.approx(2 * 0.1 + 0.05))
    slower = explain(trace, costs_for(trace, sharing=(1.0, 2.0, 3.0)))
    assert slower.costs.F == (6.0,) * 4  # of four ranks about three act at once
    with pytest.raises(
        InputError, match=r"tokens=64, but here it is 32; costs are of tp=2, but here it is 1"
    ):
        explain(trace, costs_for(trace, tokens=64, tp=2))


@pytest.mark.parametrize("fuse", [True, False])
def test_backward_actions_after_r_cost_what_they_do_without_remat(fuse: bool) -> None:
    """The run itself has remat full, as F and R have."""
    full = ActionSeconds(F=2.0, B=2.5, W=1.5, BW=4.0, R=1.0)
    none = ActionSeconds(F=2.25, B=1.25, W=1.75, BW=3.0, R=8.0)
    trace = make_trace("1f1b", 2, 4, fuse=fuse)
    stages = dict.fromkeys(REMATS, full) | {"none": none}
    costs = costs_for(trace, layer=stages, stage=stages)
    with_r = dataclasses.replace(trace, schedule=with_recompute(trace.schedule))
    without, found = explain(trace, costs).costs, explain(with_r, costs).costs
    assert (found.F, found.R) == ((2.0,) * 2, (1.0,) * 2)
    assert without.F == (2.0,) * 2
    # of a stage that knows its BW alone, B and W have half of it each
    expected = ((1.5, 1.5), (2.0, 2.0)) if fuse else ((1.25, 1.75), (2.5, 1.5))
    of_stages = [(each.B, each.W) for each in (found, without)]
    assert of_stages == [((b, b), (w, w)) for b, w in expected]


def read_back(trace: TickTrace, folder: Path) -> TickTrace:
    file = folder / "ticks-4.json"
    file.write_text(to_text(trace))
    return read_ticks(file)


@pytest.mark.parametrize(("name", "p", "m"), SIZES)
def test_what_is_written_is_read_back(name: str, p: int, m: int, tmp_path: Path) -> None:
    trace = make_trace(name, p, m, jitter=0.5)
    back = read_back(trace, tmp_path)
    for one, other in zip(itertools.chain(*trace.marks), itertools.chain(*back.marks), strict=True):
        assert one == pytest.approx(other, abs=1e-9)  # whole nanoseconds
    assert dataclasses.replace(back, marks=trace.marks) == trace


def damaged(change: str) -> str:
    given = json.loads(to_text(make_trace("1f1b", 2, 2)))
    ticks = given["ticks"]
    match change:
        case "no format":
            del given["format"]
        case "no marks":
            del ticks[1]["marks"]
        case "a mark too few":
            ticks[1]["marks"][0].pop()
        case "back in time":
            ticks[2]["marks"][1][2] = 0.0
        case "another order":
            ticks[0]["actions"][0], ticks[1]["actions"][0] = ticks[1]["actions"][0], ticks[0]["actions"][0]
        case "broken schedule":
            given["schedule"] = given["schedule"].replace("0F1,", "")
        case "an end that is none":
            ticks[0]["ends"] = ["foot"]
        case "not a number":
            given["step_seconds"], given["plain_seconds"] = "1", [float("nan")]
        case "no time":
            given["plain_seconds"], given["before"] = [0, 0], -1
        case "all at once":
            for tick in ticks:
                tick["marks"] = [[0.0] * 4 for _ in tick["marks"]]
        case "for ever":
            given["after"] = 10**400
        case "no layers":
            del given["run"]["layers_per_stage"]
    return json.dumps(given)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("no format", rf"is no file of ticks in the format '{FORMAT}'; `train.py CONFIG --run.trace_step 4`"),
        ("no marks", "tick 1 must hold ends, and of each rank an action or null, and 4 marks"),
        ("a mark too few", "tick 1 must hold"),
        ("back in time", "the marks of rank 1 must not go back in time, but do in tick 2"),
        ("another order", "the actions of rank 0 in its ticks must be those of the schedule"),
        ("broken schedule", r"schedule '1f1b' is broken"),
        ("an end that is none", "tick 0 must hold"),
        (
            "not a number",
            r"step_seconds must be a number of seconds above 0; plain_seconds must be a list of seconds",
        ),
        (
            "no time",
            "plain_seconds must be a list of seconds above 0; before must be a number of seconds, 0 or",
        ),
        ("all at once", "the marks of rank 0 must not all be at one time"),
        ("for ever", "after must be a number of seconds"),
        ("no layers", "run must be an object with the run's model, mesh, layers_per_stage and remat"),
    ],
)
def test_a_damaged_file_is_refused_with_what_is_wrong(change: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "ticks-4.json"
    file.write_text(damaged(change))
    with pytest.raises(InputError, match=said) as refused:
        read_ticks(file)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 10_000, "null", "[]"])
def test_what_is_no_json_of_ours_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "ticks-4.json"
    file.write_text(text)
    with pytest.raises(InputError, match="is no "):
        read_ticks(file)
