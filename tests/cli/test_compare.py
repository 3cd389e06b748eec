"""``jaxpipe schedule compare``: one model, several schedules."""

from pathlib import Path

import pytest

from jaxpipe.cli import main
from jaxpipe.schedules import GENERATORS, Costs, build, simulate, split_backward

COMPARE = ["schedule", "compare"]
SIZES = ["--ranks", "4", "--microbatches", "8"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*COMPARE, *arguments]) == 0
    return capsys.readouterr().out


def faults_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main([*COMPARE, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def rows_of(text: str) -> dict[str, list[str]]:
    """The table, by the name of the schedule."""
    return {row[0]: row[1:] for row in map(str.split, text.partition("\n\n")[0].splitlines())}


def test_the_table_has_the_figures_of_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    costs = ["--cost", "F=2", "--cost", "B=2.5", "--cost", "W=1.5", "--transfer", "0.25"]
    rows = rows_of(answer(capsys, *GENERATORS, "interleaved:4", *SIZES, *costs))
    names = ["chunks", "makespan", "bubble", "rank", "span", "held", "to", "B", "held", "to", "W", "weights"]
    assert rows.pop("schedule") == names
    assert list(rows) == [*GENERATORS, "interleaved:4"]
    for title, row in rows.items():
        name, _, chunks = title.partition(":")
        num_chunks = int(chunks or GENERATORS[name].default_chunks)
        schedule = build(name, num_ranks=4, num_microbatches=8, num_chunks=num_chunks)
        of_stage = Costs(*(cost / num_chunks for cost in (2, 2.5, 1.5)))
        simulation = simulate(schedule, costs=of_stage, transfer=0.25)
        assert row == [
            str(num_chunks),
            f"{simulation.makespan:g}",
            f"{simulation.bubble_fraction:.1%}",
            f"{simulation.longest_rank_span:g}",
            f"{max(simulation.peak_until_backward) / num_chunks:g}",
            f"{max(simulation.peak_until_weight) / num_chunks:g}",
            "2" if name in ("chimera", "dualpipe") else "1",
        ]


def test_all_schedules_do_the_same_work(capsys: pytest.CaptureFixture[str]) -> None:
    """Makespan without bubble, but for the rounding of its share."""
    for cost in ("F=3", "F=3,1"):
        rows = rows_of(
            answer(capsys, "1f1b", "interleaved:2", "zb_v", *SIZES[:1], "2", *SIZES[2:], "--cost", cost)
        )
        ideal = [
            float(rows[name][1]) * (1 - float(rows[name][2].rstrip("%")) / 100)
            for name in rows
            if name != "schedule"
        ]
        assert max(ideal[1:]) <= ideal[0] + 0.1


def test_parts_of_the_model_are_divided_among_the_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(answer(capsys, "interleaved:2", "--ranks", "2", "--microbatches", "4", "--cost", "F=2,4"))
    schedule = build("interleaved", num_ranks=2, num_microbatches=4, num_chunks=2)
    simulation = simulate(schedule, costs=Costs(F=(1.0, 1.0, 2.0, 2.0), B=0.5, W=0.5))
    assert rows["interleaved:2"][1] == f"{simulation.makespan:g}"


def test_the_lowered_program_is_compared_with_its_backward_split(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(answer(capsys, "1f1b", "gpipe", *SIZES, "--sync", "neighbor"))
    for name in ("1f1b", "gpipe"):
        schedule = split_backward(build(name, num_ranks=4, num_microbatches=8))
        assert rows[name][1] == f"{simulate(schedule, sync='neighbor').makespan:g}"


def test_grids_stand_below_the_table_at_one_scale_if_they_fit(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "1f1b", "zb_h1", "--ranks", "2", "--microbatches", "4")
    assert "\n1f1b\nrank 0 |F0 F1 ......BW0   F2 " in text
    assert "\nzb_h1\nrank 0 |F0 F1 ...B0 W0 " in text
    wide = answer(capsys, "1f1b", "zb_h1", "--ranks", "4", "--microbatches", "64")
    assert wide.splitlines()[-1] == "(grids need more than 80 columns; see --format html)"


@pytest.mark.parametrize("form", ["svg", "html"])
def test_pictures_have_a_row_for_each(form: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / f"compared.{form}"
    assert answer(capsys, "1f1b", "zb_v", *SIZES, "--format", form, "-o", str(file)) == ""
    assert file.read_text().count(">rank 3<") == 4 + (2 if form == "html" else 0)


def test_options_go_to_the_schedules_that_have_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert "chimera" in answer(capsys, "1f1b", "chimera", *SIZES, "--option", "num_pipes=4")
    said = faults_of(capsys, "1f1b", "zb_h1", *SIZES, "--option", "num_pipes=4")
    assert said == [
        "jaxpipe schedule compare: option 'num_pipes' does not exist for any of these schedules; leave it out"
    ]


def test_a_schedule_may_be_searched_for(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--ranks", "2", "--microbatches", "3"]
    rows = rows_of(answer(capsys, "1f1b", "auto:1", *sizes, "--option", "memory_limit=2"))
    assert float(rows["auto:1"][1]) <= float(rows["1f1b"][1])
    assert float(rows["auto:1"][5]) <= 2


def test_all_faults_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    said = faults_of(
        capsys,
        *("1f2b", "1f1b:2", "interleaved:x", "no/such.csv", "--format", "json", "--cost", "F=1,2,3"),
    )
    for fault in (
        "schedule '1f2b' does not exist; did you mean '1f1b'?",
        "--ranks is missing",
        "--microbatches is missing",
        "num_chunks=2 must be 1 for 1f1b",
        "the chunks of 'interleaved:x', 'x' must be a whole number",
        "'no/such.csv' cannot be read: No such file or directory; name a CSV file or a schedule",
        "--format 'json' must be one of text, svg, html",
    ):
        assert sum(fault in line for line in said) == 1, fault


def test_costs_that_chunks_make_too_small_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    [said] = faults_of(capsys, "zb_v", *SIZES, "--cost", "F=1e-9")
    assert "cost F=5e-10 must be at least 1e-09" in said
    assert (
        "3 costs F for 4 ranks; give one for each, or a single number"
        in faults_of(capsys, "1f1b", *SIZES, "--cost", "F=1,2,3")[0]
    )
