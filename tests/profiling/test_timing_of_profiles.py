"""Seconds of short things, by a clock that only our programs move."""

import pytest

from jaxpipe.profiling import timing
from jaxpipe.profiling.timing import ENOUGH, seconds_each, seconds_more, seconds_of

START = {"first": 5.0, "second": 0.5}
EACH = {"slow": 3 * ENOUGH, "quick": ENOUGH / 10, "instant": 0.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def test_what_a_program_takes_to_do_nothing_does_not_count(clock: list[float]) -> None:
    most_of_each: dict[tuple[str, str], int] = {}

    def run(name: tuple[str, str], count: int) -> None:
        clock[0] += START[name[0]] + count * EACH[name[1]]
        most_of_each[name] = max(count, most_of_each.get(name, 0))

    names = [(program, what) for program in START for what in EACH]
    found = seconds_each(run, names, num_rounds=3, most=50, program_of=lambda name: name[0])
    for program, what in names:
        assert found[program, what].median == pytest.approx(max(EACH[what], 1e-9))
    assert {count for (_, what), count in most_of_each.items() if what == "slow"} == {1}
    assert {count for (_, what), count in most_of_each.items() if what == "quick"} == {10}
    assert {count for (_, what), count in most_of_each.items() if what == "instant"} == {50}


def test_differences_are_taken_round_by_round(clock: list[float]) -> None:
    drift = iter(range(100))

    def run(name: str) -> None:
        clock[0] += {"base": 1.0, "more": 1.25}[name] + next(drift) // 2  # both of a round alike

    assert seconds_more(run, ["base", "more"], num_rounds=5)["more"] == pytest.approx((0.25, 0.25, 0.25))


def test_noise_below_nothing_is_a_positive_number_of_seconds() -> None:
    assert seconds_of([-1.0, -2.0, 3.0]) == (1e-9, 1e-9, 3.0)
