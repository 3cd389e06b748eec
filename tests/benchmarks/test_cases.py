"""What the benchmark measures: every schedule, nothing twice, and nothing that cannot be."""

import pytest

from benchmarks.cases import (
    MANY_LAYERS,
    SELECTION,
    VARIED_M,
    VARIED_P,
    find_case_faults,
    make_case,
    only_compiled,
    steps_in_turn,
)
from jaxpipe.schedules import GENERATORS


def default_grid(timed: tuple[int, ...]):
    return [
        case
        for case in only_compiled(
            list(GENERATORS), remats=["full", "none"], timed=timed, selection=SELECTION, fuse_backward=True
        )
        if not find_case_faults(case)
    ]


def test_every_schedule_takes_its_turn_and_1f1b_in_three_ways() -> None:
    cases = list(steps_in_turn(GENERATORS, 8, "none", fuse_backward=True))
    assert {case.schedule for case in cases} == set(GENERATORS)
    assert len({case.label for case in cases}) == len(cases) == len(GENERATORS) + 2
    assert not any(find_case_faults(case) for case in cases)


def test_what_is_timed_is_not_compiled_again() -> None:
    cases = default_grid(timed=(8, 16))
    assert len(set(cases)) == len(cases)
    at_four = [case for case in cases if case.num_layers < MANY_LAYERS]
    assert {case.num_microbatches for case in at_four} == {4, 64}
    none = [case for case in at_four if case.remat == "none"]
    assert [(case.schedule, case.num_microbatches) for case in none] == [(name, 64) for name in SELECTION]


def test_without_timed_steps_every_schedule_is_compiled_at_every_m_that_it_has() -> None:
    found = {(case.schedule, case.num_microbatches) for case in default_grid(timed=())}
    assert found >= {(name, m) for name in GENERATORS for m in VARIED_M if m >= 8 or name != "dualpipe"}
    assert ("dualpipe", 4) not in found


def test_p_and_v_vary_over_all_that_a_schedule_can() -> None:
    large = [case for case in default_grid(timed=(8, 16)) if case.num_layers == MANY_LAYERS]
    assert {case.num_ranks for case in large if case.schedule == "zb_v"} == set(VARIED_P)
    chunks = {
        name: sorted({case.num_chunks for case in large if case.schedule == name})
        for name in ("interleaved", "looped_bfs", "interleaved_zb", "1f1b")
    }
    assert chunks == {
        "interleaved": [2, 4],
        "looped_bfs": [2, 4],
        "interleaved_zb": [1, 2, 4],
        "1f1b": [1],
    }


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_microbatches": 6}, "num_microbatches=6"),
        ({"num_layers": 2}, "4 stages must have a layer each, but there are 2"),
    ],
)
def test_what_cannot_be_is_told(changes: dict, named: str) -> None:
    (fault,) = find_case_faults(make_case("dualpipe", 8, "full")._replace(**changes))
    assert named in fault
