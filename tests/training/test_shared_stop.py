"""What the processes agree on, with the answers of the others put in by hand."""

import signal

import jax
import pytest
from jax.sharding import AxisType

from jaxpipe.training.stopping.interrupt import StopRequest
from jaxpipe.training.stopping.shared_stop import SharedStop, make_highest

TERM, INT = signal.SIGTERM, signal.SIGINT


def test_the_answer_counts_one_call_late_and_all_have_asked_the_same():
    asked = []

    def highest(number: int) -> int:
        asked.append(number)
        return number

    own = StopRequest()
    stop = SharedStop(own, highest, announces=False)
    seen = []
    for step in range(4):
        if step == 1:
            own.received = TERM
        stop.ask()
        seen.append(bool(stop))
    assert seen == [False, False, True, True]
    assert asked == [0, TERM, TERM, TERM]


@pytest.mark.parametrize(("number", "code"), [(0, 0), (INT, 0), (TERM, 143)])
def test_the_exit_code_is_that_of_the_signal_that_all_know(number, code):
    stop = SharedStop(StopRequest(INT), lambda _: number, announces=False)
    stop.ask()
    stop.ask()
    assert bool(stop) == (number != 0)
    assert stop.exit_code == code


@pytest.mark.parametrize(
    ("own", "announces", "said"),
    [(None, True, "SIGTERM of another process: stopping"), (TERM, True, ""), (None, False, "")],
)
def test_process_0_tells_of_a_signal_that_another_has_received_once(own, announces, said, capfd):
    stop = SharedStop(StopRequest(own), lambda _: TERM, announces=announces)
    for _ in range(4):
        stop.ask()
    errors = capfd.readouterr().err
    assert errors.count("\n") == 2 * bool(said)
    assert said in errors


def test_the_highest_number_is_found_on_a_mesh_of_several_axes():
    highest = make_highest(jax.make_mesh((2, 4), ("dp", "pp"), axis_types=(AxisType.Auto,) * 2))
    assert [int(highest(number)) for number in (0, TERM, INT)] == [0, TERM, INT]
