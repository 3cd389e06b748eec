"""Each kind of fault is found, named, and marked in the grid."""

import importlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from jaxpipe.schedules import (
    Action,
    Placement,
    Schedule,
    build,
    forward_only,
    looped,
    parse_action,
    split_backward,
    validate,
)
from jaxpipe.schedules.communication import Exchange, RendezvousError

RIGHT = split_backward(build("1f1b", num_ranks=3, num_microbatches=4))


def by_hand(*orders: str, placement: Placement | None = None, num_microbatches: int = 1) -> Schedule:
    actions = tuple(tuple(map(parse_action, order.split())) for order in orders)
    return Schedule("hand", placement or looped(len(orders)), num_microbatches, actions)


def edited(rank: int, edit: Callable[[list[Action]], object]) -> Schedule:
    """The right schedule with one rank's order changed."""
    orders = [list(order) for order in RIGHT.orders]
    edit(orders[rank])
    return replace(RIGHT, orders=tuple(map(tuple, orders)))


def fault_of(schedule: Schedule, **options: bool) -> str:
    with pytest.raises(ValueError, match="is broken") as caught:
        validate(schedule, **options)
    return str(caught.value)


def test_a_right_schedule_passes() -> None:
    validate(RIGHT)
    validate(by_hand("0F0 0BW0"))
    validate(by_hand("0F0 0B0 0W0"))


@pytest.mark.parametrize("text", ["1F2", "1B2", "1W2"])
def test_a_missing_action_is_found(text: str) -> None:
    fault = fault_of(edited(1, lambda order: order.remove(parse_action(text))))
    assert f"{text} runs 0 times; rank 1 must run it once" in fault


@pytest.mark.parametrize("text", ["1F2", "1B2", "1W2"])
def test_an_action_that_runs_twice_is_found_and_marked(text: str) -> None:
    fault = fault_of(edited(1, lambda order: order.append(parse_action(text))))
    assert f"{text} runs 2 times; rank 1 must run it once" in fault
    assert fault.count(f"[{text}]") == 2


def test_a_fused_and_a_split_backward_of_one_microbatch_are_found() -> None:
    fault = fault_of(by_hand("0F0 0BW0 0W0"))
    assert "0W0 runs 2 times" in fault
    assert "[0BW0][0W0]" in fault.replace(" ", "")


def test_an_action_on_the_wrong_rank_is_found() -> None:
    orders = [list(order) for order in RIGHT.orders]
    stray = parse_action("1W3")
    orders[1].remove(stray)
    orders[2].append(stray)
    fault = fault_of(replace(RIGHT, orders=tuple(map(tuple, orders))))
    assert "1W3 is on rank 2, but rank 1 holds its stage" in fault
    assert "[1W3]" in fault.splitlines()[-1]


@pytest.mark.parametrize("text", ["3F0", "0F4", "0F0'"])
def test_an_action_that_does_not_exist_is_found(text: str) -> None:
    fault = fault_of(edited(0, lambda order: order.insert(0, parse_action(text))))
    assert f"{text} on rank 0 does not exist" in fault
    assert f"[{text}]" in fault


@pytest.mark.parametrize(
    ("order", "late"),
    [
        ("0B0 0F0 0W0", "0B0 comes before 0F0"),
        ("0F0 0W0 0B0", "0W0 comes before 0B0"),
        ("0BW0 0F0", "0BW0 comes before 0F0"),
    ],
)
def test_an_action_before_its_input_on_the_same_rank_is_found(order: str, late: str) -> None:
    fault = fault_of(by_hand(order))
    assert f"{late} on rank 0, but needs it" in fault
    assert f"[{late.split()[0]}]" in fault


def test_ranks_that_wait_for_each_other_are_found() -> None:
    fault = fault_of(by_hand("0F0 0BW0 0F1 0BW1", "1F0 1F1 1BW0 1BW1", num_microbatches=2))
    assert "deadlock: rank 0 at 0BW0 for rank 1, rank 1 at 1F1 for rank 0 waits for ever" in fault
    assert "[0BW0]" in fault
    assert "[1F1]" in fault


def test_each_of_two_circles_is_found_once() -> None:
    # Ranks 0 and 1 wait for each other on pipe 0, ranks 2 and 3 on pipe 1.
    placement = Placement(4, ((0, 1, 2, 3), (3, 2, 1, 0)), ((0,) * 4,) * 2)
    right = forward_only(placement, 4)
    orders = [list(order) for order in right.orders]
    backward = [
        [Action(parse_action("0BW0").kind, stage, microbatch, pipe)]
        for pipe in (0, 1)
        for microbatch in right.microbatches(pipe)
        for stage in (3, 2, 1, 0)
    ]
    for (action,) in backward:
        orders[placement.rank(action.stage, action.pipe)].append(action)
    validate(replace(right, orders=tuple(map(tuple, orders))))
    for rank, first, late in ((0, "0BW0", "0F1"), (3, "0BW2'", "0F3'")):
        order = orders[rank]
        order.remove(parse_action(first))
        order.insert(order.index(parse_action(late)), parse_action(first))
        neighbor = orders[abs(rank - 1)]
        blocked = parse_action(first.replace("0BW", "1BW"))
        neighbor.remove(blocked)
        neighbor.append(blocked)
    fault = fault_of(replace(right, orders=tuple(map(tuple, orders))))
    assert fault.count("deadlock") == 2


def test_a_send_without_a_receive_is_found() -> None:
    fault = fault_of(edited(1, lambda order: order.remove(parse_action("1F3"))))
    assert "1 send of 0F3 from rank 0 to rank 1 has no receive" in fault
    assert "1 receive of 1F3 from rank 1 to rank 2 has no send" in fault


def test_stages_that_are_no_neighbors_are_found() -> None:
    placement = Placement(4, ((0, 2, 1, 3),), ((0,) * 4,))
    fault = fault_of(by_hand("0F0 0BW0", "2F0 2BW0", "1F0 1BW0", "3F0 3BW0", placement=placement))
    assert "stages 0 and 1 of pipe 0 lie on ranks 0 and 2, but a message travels one hop" in fault


def test_all_faults_are_listed_at_once() -> None:
    fault = fault_of(by_hand("0B0 0F0 0W0 7F0", "1F0 1BW0 1BW0"))
    for part in (
        "7F0 on rank 0 does not exist",
        "0B0 comes before 0F0",
        "1B0 runs 2 times",
        "1W0 runs 2 times",
    ):
        assert part in fault


def test_evaluation_runs_f_alone() -> None:
    schedule = forward_only(looped(2), 2)
    validate(schedule, forward_only=True)
    assert "1W1 runs 0 times; rank 1 must run it once" in fault_of(schedule)
    assert "0B0 runs 1 times; rank 0 must run it never" in fault_of(RIGHT, forward_only=True)
    missing = replace(schedule, orders=(schedule.orders[0], schedule.orders[1][:1]))
    assert "1F1 runs 0 times" in fault_of(missing, forward_only=True)


def test_a_deadlock_of_messages_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes the other checks has never had one, so the finder is made to find it."""

    def refuse(schedule: Schedule) -> None:
        raise RendezvousError(schedule, {1: Exchange()})

    module = importlib.import_module("jaxpipe.schedules.validate")  # not the function of that name
    monkeypatch.setattr(module, "with_communication", refuse)
    assert "has a deadlock of messages: rank 1 at" in fault_of(RIGHT)
