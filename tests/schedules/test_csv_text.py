"""Schedules go to text and come back; a broken text is refused with its grid, whatever is in it."""

import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.schedules import GENERATORS, Placement, Schedule, build, forward_only, looped, mirrored, v_shaped
from jaxpipe.schedules.csv_cells import MOST_CELLS
from jaxpipe.schedules.csv_text import from_csv, to_csv

CHUNKS = {name: sorted({generator.default_chunks, 3}) for name, generator in GENERATORS.items()}


def every_schedule(name: str) -> list[Schedule]:
    made = []
    for p, m, v in itertools.product((1, 2, 3, 4, 6), (1, 2, 5, 12), CHUNKS[name]):
        try:
            made.append(build(name, num_ranks=p, num_microbatches=m, num_chunks=v))
        except ValueError:
            continue  # not every schedule takes every size
    assert made
    return made


def fault_of(text: str, **options: bool) -> str:
    with pytest.raises(ValueError, match=r"is broken:|the text|must be") as caught:
        from_csv(text, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", GENERATORS)
def test_every_schedule_comes_back_from_our_form(name: str) -> None:
    for schedule in every_schedule(name):
        assert from_csv(to_csv(schedule)) == schedule


@pytest.mark.parametrize("name", GENERATORS)
def test_every_schedule_of_one_pipe_comes_back_from_that_of_pytorch(name: str) -> None:
    for schedule in every_schedule(name):
        if schedule.placement.num_pipes == 1:
            assert from_csv(to_csv(schedule, "torch"), name=schedule.name) == schedule


@pytest.mark.parametrize("placement", [looped(3), looped(2, 3), v_shaped(3), mirrored(4), mirrored(4, 4)])
def test_any_placement_is_found_with_and_without_the_line_that_says_it(placement: Placement) -> None:
    schedule = forward_only(placement, 4)
    text = to_csv(schedule)
    deduced = "".join(line for line in text.splitlines(keepends=True) if "placement" not in line)
    assert from_csv(text, forward_only=True) == from_csv(deduced, forward_only=True) == schedule


def test_a_pipe_without_a_microbatch_needs_the_line_that_says_its_placement() -> None:
    schedule = forward_only(mirrored(2), 1)
    assert {action.pipe for _, action in schedule.actions()} == {1}
    assert from_csv(to_csv(schedule), forward_only=True) == schedule


def test_both_forms_are_as_documented() -> None:
    schedule = build("zb_h1", num_ranks=2, num_microbatches=2)
    assert to_csv(schedule).splitlines() == [
        "# jaxpipe schedule zb_h1",
        "# placement 0 1",
        "0F0,0F1,0B0,0W0,0B1,0W1",
        "1F0,1B0,1F1,1B1,1W0,1W1",
    ]
    assert to_csv(schedule, "torch").splitlines() == ["0F0,0F1,0I0,0W0,0I1,0W1", "1F0,1I0,1F1,1I1,1W0,1W1"]
    assert to_csv(build("gpipe", num_ranks=1, num_microbatches=1), "torch") == "0F0,0B0\n"


def test_b_means_what_the_form_says() -> None:
    split = build("zb_h1", num_ranks=1, num_microbatches=1)
    fused = build("1f1b", num_ranks=1, num_microbatches=1)
    assert from_csv("# jaxpipe schedule zb_h1\n0F0,0B0,0W0") == split
    assert from_csv("0F0,0I0,0W0", name="zb_h1") == split
    assert from_csv("0F0,0B0", name="1f1b") == fused
    assert from_csv("0F0,0BW0", name="1f1b") == fused  # a name that only we have


def test_pytorchs_own_text_with_idle_time_is_read() -> None:
    text = "0F0,0F1,,,0B0,,0B1\n,1F0,1B0,1F1,1B1,,\n"
    assert from_csv(text).orders == from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1").orders


def test_pytorchs_pairs_are_read_as_two_actions() -> None:
    assert from_csv("0F0,(0F1; 0B0)OVERLAP_F_B,0B1").orders == from_csv("0F0,0F1,0B0,0B1").orders


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff0F0,0B0\r\n1F0,1B0\r\n",
        '"0F0","0B0"\n"1F0","1B0"',
        " 0F0 ,\t0B0,,\n\n1F0, 1B0,\n,,,\n",
        "# a remark,,\n0F0,0B0\n# another\n1F0,1B0",
        "0F0,0B0\r1F0,1B0\r",
    ],
)
def test_what_editors_and_spreadsheets_add_means_nothing(text: str) -> None:
    assert from_csv(text) == from_csv("0F0,0B0\n1F0,1B0")


def test_a_text_has_its_own_name_unless_another_is_given() -> None:
    text = to_csv(build("1f1b", num_ranks=1, num_microbatches=1))
    assert from_csv(text).name == "1f1b"
    assert from_csv(text, name="mine").name == "mine"
    assert from_csv("0F0,0B0").name == "csv"


BROKEN = {
    "no action": ("0F0,0X0\n1F0,1B0", "'0X0' is not an action; write stage, kind and microbatch", "[0X0]"),
    "missing": ("0F0,0B0,0F1\n1F0,1B0,1F1,1B1", "0I1 runs 0 times; rank 0 must run it once", "0F1"),
    "twice": (
        "0F0,0B0,0B0\n1F0,1B0",
        "0I0 runs 2 times; rank 0 must run it once (row 1, column 2",
        "[0B0][0B0]",
    ),
    "deadlock": ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", "deadlock: rank 0 at 0B0 for rank 1", "[1F1]"),
    "late": ("0B0,0F0\n1F0,1B0", "0B0 comes before 0F0 on rank 0", "[0B0]"),
    "wrong rank": ("0F0,0B0,1B0\n1F0", "1B0 is on rank 0, but rank 1 holds its stage", "[1B0]"),
    "gap": (
        "0F0,0B0,0F2,0B2",
        "microbatches must count from 0 to 2 without gaps, but there is no 1",
        "[0F2]",
    ),
    "no stage": ("0F0,0B0\n2F0,2B0", "stages of pipe 0 must count from 0 to 2 without gaps", "2F0"),
    "ragged": ("0F0,0B0,1F0,1B0\n2F0,2B0", "2 ranks, a row each, must hold equally many of the 3", "2F0"),
    "far apart": ("0F0,0B0\n2F0,2B0\n1F0,1B0\n3F0,3B0", "lie on ranks 0 and 2, but a message travels", "2F0"),
    "large": ("0F0,0B999999999", "1 x 1000000000 = 1000000000 must be at most 65536", "[0B999999999]"),
    "huge": (f"0F0,0B{'9' * 5000}", "too long for an action", "[0B9999"),
    "mixed": ("0F0,0I0,0W0\n1F0,1BW0", "1BW0 is our name, but the text is in PyTorch's form", "[1BW0]"),
    "mixed, ours": ("# jaxpipe schedule a\n0F0,0I0,0W0", "0I0 is PyTorch's name", "[0I0]"),
    "prime": ("0F0,0I0,0W0,0F0'", "0F0' is our name", "[0F0']"),
    "pipes": ("# jaxpipe schedule a\n0F0,0F1''", "stages of pipe 1 must count from 0", "0F1''"),
    "communication": (
        "0F0,0SEND_F0",
        "0SEND_F0 is communication, which follows from the order",
        "[0SEND_F0]",
    ),
    "placement": (
        "# jaxpipe schedule a\n# placement 0 x\n0F0,0BW0",
        "the placement '0 x' must be the",
        "0F0",
    ),
    "placement of more": (
        "# jaxpipe schedule a\n# placement 0 1\n0F0,0BW0",
        "has rank 1, but there are 1",
        "0F0",
    ),
    "placement of none": (
        "# jaxpipe schedule a\n# placement /\n0F0,0BW0",
        "the placement '/' must be the",
        "0F0",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_each_kind_of_fault_is_named_and_marked(kind: str) -> None:
    text, message, drawn = BROKEN[kind]
    fault = fault_of(text)
    assert message in fault
    grid = [line for line in fault.splitlines() if line.startswith("rank ")]
    assert drawn in "".join(grid)


def test_all_faults_are_listed_at_once_with_their_cells() -> None:
    fault = fault_of("0F0,0I0,0I0,zero\n\n1F0,1F1,1I0,1W0,1I1,1W1,-1F0")
    for part in (
        "- 'zero' is not an action; write",
        "(row 1, column 4: zero)",
        "- '-1F0' is not an action; write",
        "(row 3, column 7: -1F0)",
        "0I0 runs 2 times; rank 0 must run it once (row 1, column 2: 0I0; row 1, column 3: 0I0)",
        "0F1 runs 0 times; rank 0 must run it once",
    ):
        assert part in fault
    assert fault.splitlines()[-2:] == [
        "rank 0 | 0F0  [0I0] [0I0] [zero]",
        "rank 1 | 1F0   1F1   1I0   1W0  [1I1]  1W1  [-1F0]",
    ]


def test_our_form_without_its_first_line_is_recognised_by_its_faults() -> None:
    fault = fault_of("0F0,0B0,0W0")
    assert "0W0 runs 2 times" in fault
    assert "if it is the input gradient, begin with the line '# jaxpipe schedule'" in fault


@pytest.mark.parametrize("text", ["", "\n,,\n", "# jaxpipe schedule a", "\ufeff", '""'])
def test_a_text_without_actions_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the text has no action; write a row for each rank"):
        from_csv(text)


def test_a_text_of_junk_is_refused_soon_and_shortly() -> None:
    with pytest.raises(ValueError, match="5000001 cells, but may have"):
        from_csv("a\n" * 5_000_000)
    assert len(fault_of("abc," * (MOST_CELLS // 20))) < 10_000
    assert len(fault_of("abc\n" * (MOST_CELLS // 20))) < 10_000
    assert len(fault_of("\0" * 10_000_000)) < 1000
    assert len(fault_of(f"({' ' * 1_000_000};{' ' * 1_000_000})OVERLAP")) < 1000


def test_what_a_form_cannot_hold_is_refused() -> None:
    schedule = forward_only(mirrored(2), 2)
    with pytest.raises(ValueError, match=r"PyTorch's form cannot tell 2 pipes apart; use the form jaxpipe"):
        to_csv(schedule, "torch")
    with pytest.raises(ValueError, match=r"form='json' must be one of jaxpipe, torch"):
        to_csv(schedule, "json")
    for name in ("two\nlines", "blank ", "comma,"):
        with pytest.raises(ValueError, match=r"must be one line"):
            to_csv(replace(schedule, name=name))
    swapped = Placement(1, ((0, 0),), ((1, 0),))
    with pytest.raises(ValueError, match=r"cannot say which chunk a stage is"):
        to_csv(replace(schedule, placement=swapped))


GOOD = [
    to_csv(build(name, num_ranks=2, num_microbatches=4)) for name in ("1f1b", "zb_h1", "interleaved", "zb_v")
]
GOOD += [
    to_csv(build("zb_v", num_ranks=2, num_microbatches=3), "torch"),
    to_csv(forward_only(mirrored(2), 3)),
]
PIECES = [
    "0",
    "1",
    "9" * 20,
    "F",
    "B",
    "W",
    "BW",
    "I",
    "'",
    ",",
    ",,",
    "\n",
    "\r",
    "#",
    '"',
    "/",
    ";",
    " ",
    "\0",
    "٣",
    "²",
]
PIECES += [
    "0F0",
    "1B1,",
    "# placement 0 1\n",
    "# jaxpipe schedule x\n",
    "(0F0;1B0)OVERLAP_F_B",
    "# placement 1 / ",
]


def read_or_refuse(text: str) -> None:
    """Any other exception fails the test, and so does a schedule that is not what the text says."""
    try:
        schedule = from_csv(text)
    except ValueError as refusal:
        fault = str(refusal)
    else:
        assert from_csv(to_csv(schedule)) == schedule
        return
    assert re.search(r"is broken:|the text ", fault)


@settings(max_examples=100, deadline=None)
@given(st.text() | st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    read_or_refuse(text)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_text_is_read_or_refused(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(GOOD))
    for _ in range(data.draw(st.integers(1, 3))):
        first = data.draw(st.integers(0, len(text)))
        behind = data.draw(st.integers(first, min(first + 12, len(text))))
        text = text[:first] + data.draw(st.sampled_from(["", *PIECES])) + text[behind:]
    read_or_refuse(text)
