"""Closed forms against the simulator: equal wherever one is given, and given where its docstring says."""

import itertools
from collections.abc import Iterator

import pytest

from jaxpipe.schedules import GENERATORS, Costs, Simulation, build, find_faults, simulate
from jaxpipe.schedules.formulas import FORMULAS, ClosedForms, closed_forms

# Binary fractions, so that sums are exact in whatever order and need no tolerance. F, B and W are each the
# largest and the smallest somewhere, and F is once above B + W.
COSTS = [
    Costs(),
    Costs(F=0.5, B=0.5, W=0.5),
    Costs(F=1.0, B=1.25, W=1.0),
    Costs(F=1.25, B=1.5, W=0.75),
    Costs(F=2.0, B=1.0, W=1.0),
    Costs(F=1.0, B=0.5, W=2.0),
    Costs(F=0.5, B=1.0, W=1.0),
    Costs(F=1.0, B=2.0, W=0.5),
    Costs(F=4.0, B=1.0, W=0.5),
]
RANKS, MICROBATCHES, CHUNKS = range(1, 9), range(1, 25), range(1, 5)

Size = dict[str, int]


def sizes_of(name: str) -> Iterator[Size]:
    for p, m, v in itertools.product(RANKS, MICROBATCHES, CHUNKS):
        size = {"num_ranks": p, "num_microbatches": m, "num_chunks": v}
        if not find_faults(name, **size):
            yield size


def found(simulation: Simulation) -> ClosedForms:
    return ClosedForms(
        work=simulation.ideal,
        bubble=simulation.bubble,
        span_bubble=simulation.longest_rank_span - simulation.ideal,
        peak_until_backward=simulation.peak_until_backward,
        peak_until_weight=simulation.peak_until_weight,
        most_held=max(simulation.peak_until_weight),
    )


def compare(name: str, size: Size, *several_costs: Costs) -> None:
    schedule = build(name, **size)
    for costs in several_costs:
        forms, simulated = closed_forms(name, **size, costs=costs), found(simulate(schedule, costs=costs))
        for figure, value in vars(forms).items():
            assert value is None or value == getattr(simulated, figure), (figure, size, costs)


def test_every_schedule_has_closed_forms_and_says_for_what() -> None:
    assert FORMULAS.keys() == GENERATORS.keys()
    assert all(form.__doc__ for form in FORMULAS.values())


@pytest.mark.parametrize("name", GENERATORS)
def test_closed_forms_are_what_the_simulator_finds(name: str) -> None:
    """A part of the grid, in steps that no size divides; all of it in the slow test below."""
    sizes = [*sizes_of(name)]
    step = max(len(sizes) // 45, 1) | 1
    step += 2 * (step % 3 == 0)
    for number, size in enumerate(sizes[::step]):
        compare(name, size, COSTS[0], COSTS[number % len(COSTS)])


@pytest.mark.grid
@pytest.mark.parametrize("name", GENERATORS)
def test_closed_forms_are_what_the_simulator_finds_for_all_sizes_and_costs(name: str) -> None:
    for size in sizes_of(name):
        compare(name, size, *COSTS)


ALL_SIZES = ("gpipe", "1f1b", "looped_bfs", "zb_h1")


@pytest.mark.parametrize("name", ALL_SIZES)
def test_forms_that_hold_for_all_are_given_for_all(name: str) -> None:
    for size, costs in itertools.product(sizes_of(name), COSTS):
        forms = closed_forms(name, **size, costs=costs)
        assert forms.bubble is not None
        assert forms.peak_until_backward is not None
        assert forms.peak_until_weight is not None


@pytest.mark.parametrize("name", GENERATORS)
def test_all_forms_are_given_for_many_whole_groups_of_equal_costs(name: str) -> None:
    for p in (2, 4, 6, 8):
        forms = closed_forms(name, num_ranks=p, num_microbatches=2 * p)
        assert all(value is not None for figure, value in vars(forms).items() if "peak" not in figure)
        assert (forms.peak_until_weight is None) == (name in ("v_half", "v_min"))


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "costs"),
    [
        ("zb_h2", 4, 6, 1, Costs(F=1.0, B=1.25, W=1.0)),  # between p and 2p-1
        ("interleaved", 4, 6, 3, Costs()),  # a last group that lacks two, and three chunks
        ("interleaved", 4, 6, 2, Costs(F=4.0)),
        ("interleaved_zb", 4, 6, 2, Costs()),
        ("zb_v", 4, 3, 2, Costs()),
        ("zb_v", 4, 8, 2, Costs(F=2.0)),
        ("v_half", 4, 8, 2, Costs(F=2.0)),
        ("v_half", 4, 3, 2, Costs()),
        ("v_min", 4, 8, 2, Costs(F=2.0)),
        ("v_min", 4, 2, 2, Costs()),
        ("dualpipe_v", 4, 7, 2, Costs()),
        ("chimera", 4, 6, 1, Costs()),
        ("chimera", 4, 8, 1, Costs(F=2.0)),
    ],
)
def test_outside_its_range_a_form_is_none(name: str, p: int, m: int, v: int, costs: Costs) -> None:
    forms = closed_forms(name, num_ranks=p, num_microbatches=m, num_chunks=v, costs=costs)
    assert forms.bubble is forms.makespan is forms.bubble_of_makespan is forms.bubble_of_ideal is None


def test_both_fractions_of_the_bubble() -> None:
    """With two chunks half the bubble over the ideal time (Narayanan et al. 2021, section 2.2)."""
    forms = closed_forms("1f1b", num_ranks=8, num_microbatches=32)
    assert (forms.bubble_of_makespan, forms.bubble_of_ideal) == (7 / 39, 7 / 32)
    forms = closed_forms("interleaved", num_ranks=8, num_microbatches=32, num_chunks=2)
    assert (forms.bubble_of_makespan, forms.bubble_of_ideal) == (7 / 71, 7 / 64)


@pytest.mark.parametrize("p", RANKS)
def test_published_bubbles_of_zero_bubble_schedules(p: int) -> None:
    """As their papers write them, for costs at which they hold (Qi et al. 2024, table 1)."""
    F, B, W = 1.25, 1.5, 0.75
    size = {"num_ranks": p, "num_microbatches": 3 * p}
    costs = Costs(F, B, W)
    assert closed_forms("1f1b", **size, costs=costs).bubble == (p - 1) * (F + B + W)
    assert closed_forms("zb_h1", **size, costs=costs).bubble == (p - 1) * (F + B - W)
    assert closed_forms("zb_h2", **size, costs=costs).span_bubble == (p - 1) * (F + B - 2 * W)
    assert closed_forms("zb_v", **size).span_bubble == 0


def test_two_actions_leave_half_of_what_an_atomic_pair_is_said_to() -> None:
    for p in (2, 4, 6, 8):
        atomic = (p // 2 - 1) * (3 + 2 - 3)  # F&B = F + B + W
        assert closed_forms("dualpipe", num_ranks=p, num_microbatches=2 * p).bubble == atomic / 2


def test_a_request_without_a_closed_form_is_explained() -> None:
    with pytest.raises(ValueError, match=r"'zbh1' does not exist; did you mean 'zb_h1'"):
        closed_forms("zbh1", num_ranks=2, num_microbatches=2)
    costs = Costs(F=(1.0, 2.0, 1.0), head=1.0)
    with pytest.raises(
        ValueError, match=r"num_ranks=3 and num_microbatches=8 must be .*one number for each kind .*head=1.0"
    ):
        closed_forms("dualpipe", num_ranks=3, num_microbatches=8, costs=costs)
