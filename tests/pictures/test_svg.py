"""Pictures hold what the simulation says, where it says, and can be read by day and by night."""

import re
from itertools import pairwise

import pytest

from jaxpipe.pictures import Timed, comparison_table, figures, find_picture_faults, html, svg
from jaxpipe.pictures.axis import shared_axis
from jaxpipe.pictures.colors import BOX_TEXT, SCHEMES, Shade, fill, outline
from jaxpipe.pictures.elements import LABEL_SIZE
from jaxpipe.pictures.sheet import width_of_heads
from jaxpipe.pictures.svg import EDGE
from jaxpipe.pictures.text_width import width_of_box
from jaxpipe.pictures.timed import held_by
from jaxpipe.schedules import GENERATORS, Costs, Kind, forward_only, looped, simulate
from tests.pictures.reading import UNEVEN, boxes, contrast, overlapping, parse, texts, timed

SIZES = [(2, 4), (4, 8)]
HOW = [{}, UNEVEN, {"costs": Costs(F=1e-3, B=1.0, W=20.0), "transfer": 3.0}]


def pictures_of(shown: list[Timed]) -> list[tuple[str, float]]:
    """SVG and HTML, with the pixel at which time begins."""
    return [(svg(shown), EDGE + width_of_heads(shown)), (html(shown), 2.0)]


def check_times(shown: list[Timed], text: str, left: float) -> None:
    """Every action, idle stretch and held stretch stands once, on its row, from its start to its end."""
    root, width = parse(text), shared_axis(shown, left=left).width
    end = max(one.simulation.makespan for one in shown)
    drawn, idle, held = (
        iter(boxes(root, "box")[-sum(len(one.simulation.start) for one in shown) :]),
        iter([box for box in boxes(root, "idle") if box.title]),
        iter([box for box in boxes(root, "held") if box.title]),
    )
    for one in shown:
        simulation = one.simulation
        tops = {}
        for rank, action in one.schedule.actions():
            box = next(drawn)
            assert box.title.startswith(f"{action}: ")
            assert f"microbatch {action.microbatch}, stage {action.stage}, rank {rank}" in box.title
            assert box.left == pytest.approx(left + width * simulation.start[action] / end, abs=0.011)
            assert box.right == pytest.approx(left + width * simulation.end[action] / end, abs=0.021)
            assert tops.setdefault(rank, box.top) == box.top
        assert sorted(tops.values()) == list(tops.values())
        assert len(set(tops.values())) == one.schedule.num_ranks
        for stretch in simulation.idle:
            box = next(idle)
            assert f"rank {stretch.rank} is idle: {stretch.cause}" in box.title
            assert box.css == f"idle {stretch.cause}"
            assert (box.left, box.right) == pytest.approx(
                (left + width * stretch.start / end, left + width * stretch.end / end), abs=0.021
            )
        for rank in range(one.schedule.num_ranks):
            for stretch in held_by(one, rank):
                assert (
                    f"{stretch.until_backward:g} until B, {stretch.until_weight:g} until W"
                    in next(held).title
                )
    assert (next(drawn, None), next(idle, None), next(held, None)) == (None, None, None)


def check_texts(text: str) -> None:
    """No text lies on another, none is wider than its box, none leaves the picture."""
    root = parse(text)
    halves = [root] if root.tag == "svg" else [*root]
    for half in halves:
        assert [*overlapping(texts(half))] == []
    for box in boxes(root, "box"):
        assert not box.label or width_of_box(box.label, LABEL_SIZE) <= box.width + 0.01
    for half in halves:
        assert max((one.right for one in texts(half)), default=0) <= float(half.get("width", "nan"))
        assert max((one.bottom for one in texts(half)), default=0) <= float(half.get("height", "nan"))


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("how", HOW, ids=["even", "uneven", "extreme"])
def test_a_picture_shows_every_action_at_its_time_and_no_text_on_another(
    name: str, how: dict[str, object]
) -> None:
    for num_ranks, num_microbatches in SIZES:
        shown = [timed(name, num_ranks, num_microbatches, **how)]
        for text, left in pictures_of(shown):
            check_times(shown, text, left)
            check_texts(text)


def test_several_schedules_share_one_axis() -> None:
    names = ("1f1b", "interleaved", "zb_v", "chimera")
    shown = [timed(name, 4, 8, **UNEVEN)._replace(stages_per_unit=3) for name in names]
    for text, left in pictures_of(shown):
        check_times(shown, text, left)
        check_texts(text)
        for cell in (cell for row in comparison_table(shown).rows for cell in row):
            assert f">{cell}<" in text


def test_one_rank_one_microbatch_and_a_schedule_of_forwards_alone_have_a_picture() -> None:
    evaluation = forward_only(looped(2, 2), 3)
    for one in (timed("1f1b", 1, 1), Timed("evaluation", evaluation, simulate(evaluation))):
        for text, left in pictures_of([one]):
            check_times([one], text, left)
            check_texts(text)


def test_boxes_on_a_row_never_overlap() -> None:
    for text, _ in pictures_of([timed("zb_v", 4, 8, **UNEVEN)]):
        rows: dict[float, list[tuple[float, float]]] = {}
        root = parse(text)
        found = [box for css in ("box", "idle", "shared") for box in boxes(root, css) if box.title]
        for box in found:
            rows.setdefault(box.top, []).append((box.left, box.right))
        assert len(rows) == 4
        for row in rows.values():
            for (_, right), (left, _) in pairwise(sorted(row)):
                assert left == pytest.approx(right, abs=0.021)


def test_labels_stand_where_they_fit() -> None:
    root = parse(svg([timed("zb_h1", 4, 8)]))
    drawn = [box for box in boxes(root, "box") if box.title]
    assert [box.label for box in drawn][:5] == ["F0", "F1", "F2", "F3", "B0"]
    wide_enough = boxes(parse(svg([timed("dualpipe", 8, 20)])), "box")
    assert all(box.label for box in wide_enough if box.title)
    crowded = [box for box in boxes(parse(svg([timed("1f1b", 8, 200)])), "box") if box.title]
    assert {box.label for box in crowded} >= {""}


def test_figures_stand_in_the_picture() -> None:
    one = timed("zb_h1", 4, 8, **UNEVEN)
    for text, _ in pictures_of([one]):
        for name, value in figures(one):
            assert f">{name} {value}<" in text or f"<dt>{name}</dt><dd>{value}</dd>" in text


def test_chunks_and_pipes_look_different() -> None:
    chunks = {box.css for box in boxes(parse(svg([timed("zb_v", 4, 8)])), "box") if box.title}
    assert {"box F F0of2", "box F F1of2"} <= chunks
    root = parse(svg([timed("dualpipe", 4, 8)]))
    for group in root.iter("g"):
        if "box" in group.get("class", "") and group.findtext("title"):
            assert (group.find("path") is not None) == ("pipe 1" in group.findtext("title", ""))


@pytest.mark.parametrize("draw", [svg, html])
def test_both_colour_schemes_are_there_and_nothing_is_loaded(draw: object) -> None:
    text = draw([timed("zb_h1", 2, 3)])
    assert "@media (prefers-color-scheme:dark)" in text
    for scheme in SCHEMES.values():
        assert all(color in text for color in scheme.values())
    used = set(re.findall(r"var\(--([\w-]+)\)", text))
    assert used <= set(SCHEMES["light"]) == set(SCHEMES["dark"])
    assert not re.search(r"(src|href)=|@import|url\((?!#)", text)
    assert set(re.findall(r"https?://[^\"' ]+", text)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_can_be_read(scheme: str) -> None:
    colors = SCHEMES[scheme]
    for ink, paper in (("text", "page"), ("text", "panel"), ("muted", "page"), ("muted", "panel")):
        assert contrast(colors[ink], colors[paper]) >= 4.5, (ink, paper)
    for mark in ("held-b", "idle-mark"):
        assert contrast(colors[mark], colors["page"]) >= 3 or mark == "idle-mark"
    for kind in Kind:
        for chunk in range(3):
            assert contrast(fill(Shade(kind, chunk, 3)), BOX_TEXT) >= 4.5
        edge = outline(kind) if scheme == "light" else fill(Shade(kind, 0, 1))
        assert contrast(edge, colors["page"]) >= 3


def test_a_name_with_signs_of_markup_or_control_characters_does_no_harm() -> None:
    schedule = timed("1f1b", 2, 2).schedule
    shown = [Timed('<b>&"\x01\u202e', schedule, simulate(schedule))]
    for text, _ in pictures_of(shown):
        parse(text)
        assert "<b>" not in text
        assert "\x01" not in text


def test_a_long_title_is_shortened_in_a_file_of_fixed_width() -> None:
    schedule = timed("1f1b", 2, 2).schedule
    long = Timed("x" * 500, schedule, simulate(schedule))
    check_texts(svg([long]))
    check_texts(svg([long, long._replace(title="y" * 500)]))


def test_what_is_too_large_is_refused_and_what_is_not_stays_small() -> None:
    largest = timed("1f1b", 20, 500)
    assert find_picture_faults([largest]) == []
    assert len(svg([largest])) < 10_000_000
    [fault] = find_picture_faults([largest, timed("1f1b", 1, 1)])
    assert "20002 actions must have at most 20000; use fewer microbatches" in fault
