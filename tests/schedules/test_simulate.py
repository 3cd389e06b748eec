"""Times against closed forms, hand-made examples and the table of the design."""

import itertools

import pytest

from jaxpipe.schedules import (
    GENERATORS,
    Action,
    Cause,
    Costs,
    Kind,
    Schedule,
    assign_ticks,
    build,
    find_faults,
    held_over_time,
    looped,
    parse_action,
    peak_held,
    simulate,
    split_backward,
)

LAYER_8B = Costs(F=1.15, B=1.385, W=1.0)
"""An 8B layer at 8k context."""
RECOMPUTING = Costs(F=1.15, B=2.5, W=1.0)
WITH_ENDS = Costs(F=1.15, B=1.385, W=1.0, head=0.7, embedding=0.1)

SMALL = [
    (name, p, m)
    for name, p, m in itertools.product(GENERATORS, (1, 2, 3, 4), (1, 2, 5, 8))
    if not find_faults(name, num_ranks=p, num_microbatches=m)
]


def zb_h2(num_ranks: int, num_microbatches: int) -> Schedule:
    """2(p-r)-1 F; then B and F in turn, W 2r microbatches behind; then what is left (Qi et al. 2024)."""
    orders = []
    for rank in range(num_ranks):
        warm_up, lag = min(2 * (num_ranks - rank) - 1, num_microbatches), 2 * rank
        order = [Action(Kind.F, rank, microbatch) for microbatch in range(warm_up)]
        for turn in range(num_microbatches + lag):
            steps = ((Kind.B, turn), (Kind.F, turn + warm_up), (Kind.W, turn - lag))
            order += [Action(kind, rank, k) for kind, k in steps if 0 <= k < num_microbatches]
        orders.append(tuple(order))
    return Schedule("zb_h2", looped(num_ranks), num_microbatches, tuple(orders))


FUSED = build("1f1b", num_ranks=8, num_microbatches=64)
ORDERS = {
    "1f1b": (FUSED, LAYER_8B),
    "1f1b split": (split_backward(FUSED), LAYER_8B),
    "zb_h1": (build("zb_h1", num_ranks=8, num_microbatches=64), LAYER_8B),
    "zb_h2": (zb_h2(8, 64), LAYER_8B),
    "1f1b split, recomputing": (split_backward(FUSED), RECOMPUTING),
}
EFFICIENCIES = {
    "1f1b": (0.901, 0.688, 0.704),
    "1f1b split": (0.927, 0.813, 0.913),
    "zb_h1": (0.955, 0.841, 0.914),
    "zb_h2": (0.966, 0.927, 0.931),
    "1f1b split, recomputing": (0.921, 0.627, 0.851),
}


@pytest.mark.parametrize("name", ORDERS)
def test_efficiency_is_that_of_the_design(name: str) -> None:
    schedule, costs = ORDERS[name]
    efficiencies = [
        1 - simulate(schedule, costs=costs, sync=sync, transfer_ticks=transfer_ticks).bubble_fraction
        for sync, transfer_ticks in (("async", 1), ("neighbor", 1), ("neighbor", 2))
    ]
    # The design gives three digits.
    assert efficiencies == pytest.approx(EFFICIENCIES[name], abs=0.0006)


def test_two_ranks_and_one_microbatch_by_hand() -> None:
    schedule = build("1f1b", num_ranks=2, num_microbatches=1)
    simulation = simulate(schedule, costs=Costs(F=(1.0, 2.0), B=(3.0, 4.0), W=(0.5, 0.25)), transfer=0.125)
    assert {str(action): time for action, time in simulation.start.items()} == {
        "0F0": 0.0,
        "1F0": 1.125,
        "1BW0": 3.125,
        "0BW0": 7.5,
    }
    assert simulation.makespan == 11.0
    assert simulation.work == (4.5, 6.25)
    assert (simulation.ideal, simulation.bubble) == (6.25, 4.75)
    assert simulation.longest_rank_span == 11.0
    assert [(idle.rank, idle.start, idle.end, idle.cause) for idle in simulation.idle] == [
        (0, 1.0, 7.375, Cause.DEPENDENCY),
        (0, 7.375, 7.5, Cause.TRANSFER),
        (1, 0.0, 1.0, Cause.DEPENDENCY),
        (1, 1.0, 1.125, Cause.TRANSFER),
        (1, 7.375, 11.0, Cause.DRAIN),
    ]


def test_a_tick_waits_for_the_neighbors_tick_before() -> None:
    # Rank 1's 1F1 is ready when rank 0's 0F1 has ended, and with one transfer tick so is rank 0's next tick.
    schedule = build("gpipe", num_ranks=2, num_microbatches=3)
    costs = Costs(F=(1.0, 5.0))
    waits = {
        transfer_ticks: [
            (idle.start, idle.end)
            for idle in simulate(schedule, costs=costs, sync="neighbor", transfer_ticks=transfer_ticks).idle
            if idle.rank == 0 and idle.cause in (Cause.NEIGHBOR, Cause.IMBALANCE)
        ]
        for transfer_ticks in (1, 2)
    }
    # Rank 0 may start tick 2 when rank 1 has ended its tick 1, at 6; with two ticks of transfer,
    # rank 1's first action runs in tick 2 and rank 0's forwards are over by then.
    assert waits[1][0] == (2.0, 6.0)
    assert all(start >= 3.0 for start, _ in waits[2])


def test_what_a_neighbors_action_takes_longer_is_imbalance_and_that_it_began_later_is_not() -> None:
    # In one tick rank 1 runs 1W0, from 15 to 16, and rank 2 runs 2F2, which takes 3 and begins at 17, since
    # rank 3 has run 3F1 until then. Of the wait for the end of 2F2, at 20, 2 are what it takes longer.
    schedule = split_backward(build("1f1b", num_ranks=4, num_microbatches=4))
    simulation = simulate(schedule, costs=Costs(F=3.0), sync="neighbor")
    waits = [(idle.start, idle.end, idle.cause) for idle in simulation.idle if idle.rank == 1]
    assert (16.0, 18.0, Cause.NEIGHBOR) in waits
    assert (18.0, 20.0, Cause.IMBALANCE) in waits


@pytest.mark.parametrize("sync", ["async", "neighbor"])
@pytest.mark.parametrize("transfer_ticks", [1, 2])
def test_work_and_idle_time_fill_the_makespan(sync: str, transfer_ticks: int) -> None:
    for (name, p, m), costs in itertools.product(SMALL, (LAYER_8B, WITH_ENDS)):
        simulation = simulate(
            build(name, num_ranks=p, num_microbatches=m),
            costs=costs,
            transfer=0.3,
            sync=sync,
            transfer_ticks=transfer_ticks,
        )
        for rank, work in enumerate(simulation.work):
            idle = sum(stretch.end - stretch.start for stretch in simulation.idle if stretch.rank == rank)
            assert work + idle == pytest.approx(simulation.makespan, rel=1e-12)


@pytest.mark.parametrize("transfer_ticks", [1, 2])
def test_waiting_for_neighbors_is_never_faster(transfer_ticks: int) -> None:
    for name, p, m in SMALL:
        schedule = build(name, num_ranks=p, num_microbatches=m)
        free = simulate(schedule, costs=LAYER_8B)
        coupled = simulate(schedule, costs=LAYER_8B, sync="neighbor", transfer_ticks=transfer_ticks)
        for action, time in free.start.items():
            assert coupled.start[action] >= time - 1e-9


def test_with_equal_costs_the_lowered_program_takes_its_ticks() -> None:
    for name, p, m in SMALL:
        schedule = split_backward(build(name, num_ranks=p, num_microbatches=m))
        ticks = assign_ticks(schedule)
        assert simulate(schedule, sync="neighbor").start == {
            action: float(tick) for action, tick in ticks.items()
        }


def test_each_end_lies_on_the_rank_of_its_stage() -> None:
    schedule = build("1f1b", num_ranks=2, num_microbatches=1)
    costs = Costs(F=(1.0, 2.0), B=(3.0, 4.0), W=(0.5, 0.25), head=10.0, embedding=0.125)
    simulation = simulate(schedule, costs=costs)
    assert {str(action): (simulation.start[action], time) for action, time in simulation.end.items()} == {
        "0F0": (0.0, 1.125),
        "1F0": (1.125, 13.125),
        "1BW0": (13.125, 17.375),
        "0BW0": (17.375, 21.0),
    }
    assert simulation.work == (4.75, 16.25)
    assert simulation.ends == ()


def test_all_ranks_share_the_ends_of_the_lowered_program() -> None:
    schedule = build("1f1b", num_ranks=2, num_microbatches=1)
    costs = Costs(F=(1.0, 2.0), B=(3.0, 4.0), W=(0.5, 0.25), head=10.0, embedding=0.125)
    simulation = simulate(schedule, costs=costs, sync="neighbor")
    # The lookup before 0F0, the head before 1BW0, the embedding's gradient in a last tick after 0BW0.
    assert simulation.ends == ((0.0, 0.0625), (3.0625, 8.0625), (15.8125, 15.875))
    assert {str(action): time for action, time in simulation.start.items()} == {
        "0F0": 0.0625,
        "1F0": 1.0625,
        "1BW0": 8.0625,
        "0BW0": 12.3125,
    }
    assert simulation.makespan == 15.875
    assert simulation.work == (9.625, 11.375)
    assert [(idle.rank, idle.start, idle.end, idle.cause) for idle in simulation.idle] == [
        (0, 1.0625, 3.0625, Cause.DEPENDENCY),
        (0, 8.0625, 12.3125, Cause.DEPENDENCY),
        (1, 0.0625, 1.0625, Cause.DEPENDENCY),
        (1, 12.3125, 15.8125, Cause.ENDS),
    ]


def test_ends_that_cost_almost_nothing_change_almost_nothing() -> None:
    for name, p, m in SMALL:
        schedule = build(name, num_ranks=p, num_microbatches=m)
        least = simulate(schedule, costs=Costs(head=1e-9, embedding=1e-9))
        assert least.makespan == pytest.approx(simulate(schedule).makespan, abs=1e-6)


def test_held_over_time_peaks_at_the_peak_and_ends_at_nothing() -> None:
    for name, p, m in SMALL:
        schedule = build(name, num_ranks=p, num_microbatches=m)
        simulation = simulate(schedule)
        for until in (Kind.B, Kind.W):
            for rank, order in enumerate(schedule.orders):
                held = [
                    count
                    for _, count in held_over_time(order, until, start=simulation.start, end=simulation.end)
                ]
                assert max(held) == peak_held(schedule, until)[rank]
                assert held[-1] == 0


def test_the_zero_bubble_order_without_a_limit_has_no_bubble_in_a_rank() -> None:
    simulation = simulate(zb_h2(4, 8))
    assert simulation.longest_rank_span == simulation.ideal == 24.0
    assert simulation.peak_until_backward == (7, 5, 3, 1)


def test_costs_that_are_no_costs_are_all_named() -> None:
    with pytest.raises(ValueError, match=r"cost F=-1.0 .*cost B=nan .*cost W=inf "):
        Costs(F=-1.0, B=float("nan"), W=(1.0, float("inf")))


def test_a_request_that_cannot_be_simulated_is_explained() -> None:
    schedule = build("1f1b", num_ranks=2, num_microbatches=2)
    with pytest.raises(ValueError, match=r"3 costs F for 2 stages.*transfer=-1.0 .*sync='lockstep' "):
        simulate(schedule, costs=Costs(F=(1.0, 1.0, 1.0)), transfer=-1.0, sync="lockstep")
    with pytest.raises(ValueError, match=r"transfer_ticks=3"):
        simulate(schedule, sync="neighbor", transfer_ticks=3)


def test_a_deadlock_is_named_with_the_actions_that_wait() -> None:
    orders = (("0F0", "0BW0", "0F1", "0BW1"), ("1F0", "1F1", "1BW0", "1BW1"))
    actions = tuple(tuple(map(parse_action, order)) for order in orders)
    with pytest.raises(ValueError, match=r"rank 0 at 0BW0, rank 1 at 1F1 wait for ever"):
        simulate(Schedule("hand", looped(2), 2, actions))
