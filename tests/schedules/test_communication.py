"""Sends and receives, written out: the figures that people count by hand, and a proof that can fail."""

import itertools
from collections import Counter

import pytest

from jaxpipe.schedules import (
    GENERATORS,
    Schedule,
    assign_ticks,
    build,
    find_faults,
    forward_only,
    looped,
    parse_action,
    split_backward,
    validate,
)
from jaxpipe.schedules.actions import Action
from jaxpipe.schedules.communication import (
    Exchange,
    Program,
    RendezvousError,
    group_by_tick,
    pair_messages,
    single_messages,
    stuck,
    with_communication,
)
from jaxpipe.schedules.messages import Message, receives, sends

MICROBATCHES = range(1, 9)
RIGHT = split_backward(build("1f1b", num_ranks=3, num_microbatches=4))


def kinds(program: Program) -> Counter[str]:
    """Action kinds and exchange kinds of a program."""
    return Counter(step.kind for step in program)


def text(program: Program) -> str:
    return " ".join(map(str, program))


@pytest.mark.parametrize("m", MICROBATCHES)
def test_1f1b_of_two_ranks_fuses_all_but_the_ends(m: int) -> None:
    first, last = with_communication(build("1f1b", num_ranks=2, num_microbatches=m)).programs
    assert len(first) == len(last) == 3 * m + 1
    assert kinds(first) == +Counter(F=m, BW=m, SF=1, RB=1, SFRB=m - 1)
    assert kinds(last) == +Counter(F=m, BW=m, RF=1, SB=1, SBRF=m - 1)


def test_1f1b_of_two_ranks_by_hand() -> None:
    communicated = with_communication(build("1f1b", num_ranks=2, num_microbatches=4))
    assert communicated.grouping == "pairs"
    assert [text(program) for program in communicated.programs] == [
        "0F0 0SF0 0F1 0SF1+0RB0 0BW0 0F2 0SF2+0RB1 0BW1 0F3 0SF3+0RB2 0BW2 0RB3 0BW3",
        "1RF0 1F0 1BW0 1SB0+1RF1 1F1 1BW1 1SB1+1RF2 1F2 1BW2 1SB2+1RF3 1F3 1BW3 1SB3",
    ]


@pytest.mark.parametrize("m", MICROBATCHES)
def test_gpipe_sends_and_receives_each_microbatch_by_itself(m: int) -> None:
    for p in range(1, 9):
        communicated = with_communication(build("gpipe", num_ranks=p, num_microbatches=m))
        assert communicated.grouping == "single"
        expected = [2 * m] if p == 1 else [4 * m, *[6 * m] * (p - 2), 4 * m]
        assert [len(program) for program in communicated.programs] == expected


def test_pipes_are_told_apart() -> None:
    schedule = build("chimera", num_ranks=2, num_microbatches=2)
    names = " ".join(map(text, with_communication(schedule).programs)).replace("+", " ").split()
    assert {"0SF0", "1RF0", "0SF1'", "1RF1'"} <= {*names}


SIZES = [*itertools.product(range(1, 9), range(1, 13), range(1, 5))]


@pytest.mark.parametrize("name", GENERATORS)
def test_every_schedule_passes_a_rendezvous(name: str) -> None:
    for p, m, v in SIZES:
        if (p + 2 * m + v) % 5 == 0:
            prove(name, p, m, v)


@pytest.mark.grid
@pytest.mark.parametrize("name", GENERATORS)
def test_every_schedule_of_every_size_passes_a_rendezvous(name: str) -> None:
    for p, m, v in SIZES:
        prove(name, p, m, v)


def prove(name: str, p: int, m: int, v: int) -> None:
    """Nothing blocks or is lost on the way: actions keep their order, and each send has one receive."""
    if find_faults(name, num_ranks=p, num_microbatches=m, num_chunks=v):
        return
    schedule = build(name, num_ranks=p, num_microbatches=m, num_chunks=v)
    programs = with_communication(schedule).programs
    assert stuck(programs) == {}
    orders = [tuple(step for step in program if isinstance(step, Action)) for program in programs]
    assert tuple(orders) == schedule.orders
    sent, received = messages_of(programs)
    assert sent == received == sends(schedule) == receives(schedule)


def messages_of(programs: tuple[Program, ...]) -> tuple[Counter[Message], Counter[Message]]:
    """All that is sent and all that is received, each checked to be so by the rank that it says."""
    sent: Counter[Message] = Counter()
    received: Counter[Message] = Counter()
    for rank, program in enumerate(programs):
        for step in program:
            if isinstance(step, Exchange):
                assert all(message.sender == rank for message in step.sends)
                assert all(message.receiver == rank for message in step.receives)
                sent.update(step.sends)
                received.update(step.receives)
    return sent, received


def test_1f1b_without_pairs_blocks() -> None:
    """Both ranks have something to send, and neither comes to receive."""
    for p, m in itertools.product(range(2, 9), range(2, 13)):
        single = single_messages(build("1f1b", num_ranks=p, num_microbatches=m))
        waiting = stuck(single)
        assert {waiting[p - 2].kind, waiting[p - 1].kind} == {"SF", "SB"}
        assert stuck(pair_messages(single)) == {}


def test_the_published_interleaved_order_blocks_with_pairs_and_passes_by_ticks() -> None:
    for p, v, rounds in itertools.product((2, 3, 4, 6, 8), (2, 3, 4), (1, 2)):
        schedule = build("interleaved", num_ranks=p, num_microbatches=p * rounds, num_chunks=v)
        single = single_messages(schedule)
        assert stuck(single)
        assert stuck(pair_messages(single))
        assert stuck(group_by_tick(single, assign_ticks(schedule))) == {}
        assert with_communication(schedule).grouping == "ticks"


def test_only_sf_with_rb_and_sb_with_rf_are_pairs() -> None:
    """GPipe's last SF is followed by the first RB; with chunks, SF is also followed by RF."""
    pairs = pair_messages(single_messages(build("gpipe", num_ranks=3, num_microbatches=2)))
    assert [kinds(program)["SFRB"] + kinds(program)["SBRF"] for program in pairs] == [1, 1, 0]
    chunks = pair_messages(single_messages(build("interleaved", num_ranks=2, num_microbatches=4)))
    assert {step.kind for program in chunks for step in program} <= {
        *("F", "BW", "SF", "RF", "SB", "RB", "SFRB", "SBRF")
    }


def test_a_group_is_what_its_messages_are() -> None:
    forward = Message(parse_action("0F1"), sender=0, receiver=1)
    backward = Message(parse_action("1B0"), sender=1, receiver=0)
    elsewhere = Message(parse_action("1B0"), sender=3, receiver=0)
    assert Exchange((forward,)).kind == "SF"
    assert Exchange((), (forward,)).kind == "RF"
    assert Exchange((backward,)).kind == "SB"
    assert Exchange((), (backward,)).kind == "RB"
    assert Exchange((forward,), (backward,)).kind == "SFRB"
    assert Exchange((backward,), (forward,)).kind == "SBRF"
    assert Exchange((forward,), (elsewhere,)).kind == "group"
    assert Exchange((forward, backward)).kind == "group"


@pytest.mark.parametrize("side", ["sends", "receives"])
def test_a_message_without_its_other_side_blocks(side: str) -> None:
    programs = with_communication(RIGHT).programs
    steps = (step for program in programs for step in program if isinstance(step, Exchange))
    step = next(step for step in steps if getattr(step, side))
    lost = step._replace(**{side: ()})
    broken = [tuple(lost if other is step else other for other in program) for program in programs]
    partner = step.sends[0].receiver if side == "sends" else step.receives[0].sender
    assert partner in stuck(broken)


def test_a_message_that_is_sent_twice_blocks() -> None:
    programs = [*with_communication(RIGHT).programs]
    again = next(step for step in programs[0] if isinstance(step, Exchange) and step.sends)
    programs[0] = (*programs[0], again)
    assert stuck(programs) == {0: again}


def test_messages_in_another_order_block() -> None:
    """Rank 0 sends two microbatches the other way round."""
    programs = [list(program) for program in single_messages(build("gpipe", num_ranks=2, num_microbatches=2))]
    first, second = (i for i, step in enumerate(programs[0]) if isinstance(step, Exchange) and step.sends)
    programs[0][first], programs[0][second] = programs[0][second], programs[0][first]
    assert {rank: str(step) for rank, step in stuck(programs).items()} == {0: "0SF1", 1: "1RF0"}


def test_a_schedule_with_a_send_that_nobody_receives_is_refused_with_where_it_waits() -> None:
    schedule = Schedule("hand", looped(2), 1, ((parse_action("0F0"),), ()))
    with pytest.raises(RendezvousError, match=r"'hand' .* rank 0 at 0SF0 wait for ever; reorder") as caught:
        with_communication(schedule)
    assert set(caught.value.waiting) == {0}


def test_a_forward_pass_alone_passes_message_by_message() -> None:
    schedule = forward_only(looped(3), 4)
    assert with_communication(schedule).grouping == "single"
    validate(schedule, forward_only=True)


def test_sends_and_receives_pair_up() -> None:
    assert sends(RIGHT) == receives(RIGHT)
    # Each of 2 hops carries 4 microbatches up and 4 down.
    assert sends(RIGHT).total() == 2 * 4 * 2
