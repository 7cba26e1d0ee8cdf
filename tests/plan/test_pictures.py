"""The pictures of a plan: what their marks stand for, and the files that hold them."""

import re
from dataclasses import replace
from itertools import accumulate

import pytest

from harness.plan.pictures import chief_pictures, choice, pictured
from harness.plan.run import Planned
from harness.predict.fastest import Optimal
from harness.predict.step_history import Entry, StepHistory
from harness.show.html import html
from harness.show.page import Page, Picture, details
from harness.units import format_bytes
from tests.plan.test_plan_terminal import TE, layout, planned

GIB = 1024**3


@pytest.fixture
def spec(make_spec):
    return make_spec(
        compute_dtype="bf16", recompute="none", num_gpus=2, kernels={"transformer_impl": TE},
        parallelism={"pipeline_model_parallel_size": 2},
    )  # fmt: skip


def of(*plans):
    """As `plan` and `plan --over` have it."""
    return Planned(tuple(layout(f"layout {at}", plan) for at, plan in enumerate(plans)))


def drawn(plan):
    return [each for each in pictured(of(plan), Page(())).blocks if isinstance(each, Picture)]


def test_a_page_without_the_picture_of_a_step_says_why(spec):
    assert len([each for each in pictured(of(planned(spec)), Page(())).blocks if isinstance(each, str)]) == 1


def test_a_history_counts_what_each_row_reserves_and_allocates():
    rows = (("segment_alloc", 8), ("alloc", 5), ("free_requested", 5), ("free_completed", 5), ("segment_free", 8))
    entries = tuple(Entry(action, 0, size, label=("optimizer",)) for action, size in rows)
    moments = StepHistory(entries, ((0, 0, "build"),), (), {}, "").moments()
    assert [moment[:2] for moment in moments] == [(8, 0), (8, 5), (8, 5), (8, 0), (0, 0)]


PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "transient", "overhead")


def test_the_parts_of_a_stage_are_stacked_up_to_its_peak(spec):
    plan = planned(spec, 200 * GIB)
    found = plan.recommended.prediction
    (stages,) = (each for each in drawn(plan) if each.name == "memory_stages")
    assert [tuple(kind for kind, _ in bar.parts) for bar in stages.chart.rows] == [(*PARTS, "allocator")] * 2
    sizes = [sum(size for _, size in bar.parts) * GIB for bar in stages.chart.rows]
    assert sizes == pytest.approx([held.fits[1] for held in found.held])
    spans = [bar.span for bar in stages.chart.rows]
    assert [at for at, span in enumerate(spans) if span] == [found.worst.pp_rank]
    assert [end * GIB for end in spans[found.worst.pp_rank]] == pytest.approx(found.fits[::2])


def test_the_usable_memory_is_a_line_and_the_recommended_setting_is_marked(spec):
    plan = planned(spec, int(planned(spec).control.prediction.peak_bytes * 0.99))
    chart = choice(of(plan)).chart
    assert [limit.at * GIB for limit in chart.across] == [pytest.approx(plan.limits.budget_bytes)]
    assert len(chart.points) == len([row for row in plan.rows if row.prediction])
    best = plan.recommended
    assert best is not plan.control
    (marked,) = (point for point in chart.points if point.kind == "use this")
    assert (marked.name, marked.x * GIB) == (best.text, pytest.approx(best.prediction.fits[1]))
    assert marked.y == pytest.approx(best.prediction.time.likely_s)
    assert [point.name for point in chart.points if point.kind == "no recompute"] == ["none"]
    numbers = [int(point.number) for point in chart.points if point.number]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [point.name != "" for point in chart.points] == [point.number != "" for point in chart.points]


def test_no_setting_is_below_and_left_of_the_line(spec):
    chart = choice(of(planned(spec, 200 * GIB))).chart
    (front,) = chart.curves
    assert {(point.x, point.y) for point in chart.points} >= set(front.places)
    for point in chart.points:
        assert not [place for place in front.places if place[0] > point.x and place[1] > point.y]


def test_a_plan_by_layer_has_a_box_for_each_layer_and_what_its_stage_needs(spec):
    plan = planned(spec, 200 * GIB)
    stages = ((("full", "mlp"), ("none",)), (("none", "none"), ("none", "none")))
    found = Optimal(replace(plan.recommended, overhead=0.5), stages, seconds=1.0, bound=1.0)
    drawn = replace(of(plan), optimal=found)
    picture, chosen = chief_pictures(drawn)
    rows = picture.chart.rows
    assert [[kind for kind, _ in bar.parts] for bar in rows] == [
        ["full", "mlp", "", "none"],
        ["none", "none", "", "none", "none"],
    ]
    assert {width for bar in rows for kind, width in bar.parts if kind} == {1}
    second = [dict(enumerate(accumulate((width for _, width in bar.parts), initial=0)))[3] for bar in rows]
    assert second == [pytest.approx(second[0])] * 2  # chunks begin at one place
    assert len({picture.chart.looks[kind] for kind in ("full", "mlp", "none")}) == 3
    assert [bar.text.split(" of ") for bar in rows] == [
        [format_bytes(held.fits[1]), f"{format_bytes(plan.limits.budget_bytes)} usable"]
        for held in plan.recommended.prediction.held
    ]
    (marked,) = (point for point in chosen.chart.points if point.kind == "use this")
    assert marked.name == "plan by layer"
    assert html(pictured(drawn, Page(()))).count("<figure") == 3


def test_several_layouts_are_compared_each_with_its_best_setting(spec):
    plans = [planned(spec, 200 * GIB), planned(spec, 300 * GIB)]
    chart = choice(of(*plans)).chart
    assert sorted(point.name for point in chart.points) == ["layout 0: none", "layout 1: none"]
    assert sorted(point.number for point in chart.points) == ["1", "2"]
    assert [point.name for point in chart.points if point.kind == "use this"] == ["layout 0: none"]


@pytest.mark.parametrize(("capacity", "words"), [(None, " not known."), (2000 * GIB, " axis.")])
def test_a_limit_that_is_unknown_or_far_off_is_words(spec, capacity, words):
    for picture in drawn(planned(spec, capacity)):
        assert (picture.caption.endswith(words), picture.name) == (True, picture.name)


def test_the_page_has_the_answer_then_the_choice_then_the_table_then_the_other_pictures(spec):
    page = pictured(of(planned(spec)), Page((details("note", ("a note",)), "the table"), answer="Use none."))
    text = html(page)
    order = ["Use none.", "Which setting: ", "the table", "Memory by stage", "Details"]
    assert sorted(order, key=text.index) == order
    assert [block.name for block in page.blocks if isinstance(block, Picture)] == ["choice", "memory_stages"]
    assert "TP 1, PP 2" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--columns", "peak,nope"), "--columns nope: .*peak, usable, "),
        (("--svg", "plan.png"), r"--svg plan\.png: .*\*\.svg"),
        (("--html", "plan.png"), r"--html plan\.png: .*\*\.html"),
        (("--svg", "nowhere/plan.svg"), r"--svg nowhere/plan\.svg: .* nowhere"),
        (("--step_trace", "step.txt"), r"--step_trace step\.txt: "),
        (("--step_trace", "nowhere/step.json"), r"--step_trace nowhere/step\.json: .* nowhere"),
        (("--calibrate", "RUN", "--svg", "a.svg"), "--calibrate"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_traced(mbr_perf, options, message):
    answer = mbr_perf("plan", "-mr", "llama3_8b", "-g", "h100", *options)
    assert (answer.code, answer.out) == (2, "")
    assert re.match(f"error: {message}", answer.err, re.DOTALL)
