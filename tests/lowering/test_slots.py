"""Interval allocation against a count of what lives at one time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.lowering.slots import Lifetime, Moment, Phase, allocate

MOMENTS = st.builds(Moment, st.integers(0, 12), st.sampled_from(list(Phase)))
LIFETIMES = st.dictionaries(
    st.integers(0, 99), st.builds(lambda a, b: Lifetime(min(a, b), max(a, b)), MOMENTS, MOMENTS), max_size=20
)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(LIFETIMES)
def test_no_slot_holds_two_values_and_no_slot_is_wasted(lifetimes: dict[int, Lifetime]) -> None:
    slots, num_slots = allocate(lifetimes)
    assert set(slots.values()) == set(range(num_slots))
    most = 0
    for tick in range(13):
        for phase in Phase:
            moment = Moment(tick, phase)
            alive = [
                value for value, lifetime in lifetimes.items() if lifetime.written <= moment <= lifetime.read
            ]
            assert len({slots[value] for value in alive}) == len(alive)
            most = max(most, len(alive))
    assert num_slots == most


def test_a_slot_that_an_action_reads_is_free_for_an_arrival_of_the_same_tick() -> None:
    lifetimes = {
        "first": Lifetime(Moment(0, Phase.ENDS), Moment(3, Phase.ACTION)),
        "second": Lifetime(Moment(3, Phase.ARRIVAL), Moment(5, Phase.ACTION)),
        "third": Lifetime(Moment(3, Phase.ENDS), Moment(4, Phase.ACTION)),
    }
    assert allocate(lifetimes) == ({"first": 0, "second": 0, "third": 1}, 2)
