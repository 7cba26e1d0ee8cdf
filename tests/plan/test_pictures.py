"""The pictures of a plan: what their marks stand for, and the files that hold them."""

import json
import struct
from itertools import pairwise

import pytest

from harness.plan.pictures import plan_pictures, write_html, write_png
from harness.show.page import Page
from tests.plan.test_plan_terminal import TE, planned

GIB = 1024**3


@pytest.fixture
def spec(make_spec):
    return make_spec(
        compute_dtype="bf16", recompute="none", num_gpus=2, kernels={"transformer_impl": TE},
        parallelism={"pipeline_model_parallel_size": 2},
    )  # fmt: skip


def datasets_of(plan):
    """The rows of each part of both pictures, in no particular order of parts."""
    specs = [json.loads(picture.vega_lite) for picture in plan_pictures(plan)]
    return [rows for spec in specs for rows in spec["datasets"].values()]


def rows_of(plan):
    """All rows of both pictures."""
    return [row for rows in datasets_of(plan) for row in rows]


PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "transient", "overhead")


def test_the_parts_of_a_stage_are_stacked_up_to_its_peak(spec):
    plan = planned(spec, 200 * GIB)
    rows, control = rows_of(plan), plan.control.prediction
    panels = [panel for panel in datasets_of(plan) if "part" in panel[0]]
    for panel in panels:
        for stage in control.stages:
            bars = [row for row in panel if row["stage"] == stage.pp_rank]
            assert tuple(bar["part"] for bar in bars) == PARTS
            assert bars[0]["low"] == 0
            assert all(below["high"] == above["low"] for below, above in pairwise(bars))
    tops = [{row["stage"]: row["high"] * GIB for row in panel} for panel in panels]
    assert {stage.pp_rank: pytest.approx(stage.total) for stage in control.stages} in tops
    (whisker,) = [row for row in rows if row.get("text") == f"{control.peak_bytes / GIB:.1f}" and "stage" in row]
    assert whisker["stage"] == control.worst.pp_rank
    assert (whisker["low"] * GIB, whisker["high"] * GIB) == pytest.approx(control.range_bytes)


def test_limit_and_margin_are_lines_and_the_recommended_setting_is_marked(spec):
    plan = planned(spec, int(planned(spec).control.prediction.peak_bytes * 0.99))
    rows = rows_of(plan)
    size, budget = plan.limits.capacity_bytes, plan.limits.budget_bytes
    limits = {row["kind"]: row["at"] * GIB for row in rows if "kind" in row}
    assert limits == {"memory": pytest.approx(size), "margin": pytest.approx(budget)}
    points = {row["setting"]: row for row in rows if "setting" in row}
    assert points.keys() == {row.text for row in plan.rows if row.prediction}
    best = plan.recommended
    assert best is not plan.control
    assert [name for name, row in points.items() if row["state"] == "recommended"] == [best.text]
    assert points["none"]["state"] == "without recompute"
    assert points[best.text]["x"] * GIB == pytest.approx(best.prediction.peak_bytes)
    assert points[best.text]["y"] == pytest.approx(best.overhead * 100)
    assert any(row.get("text") == f"{best.text} (use this)" for row in rows)


def test_a_limit_that_is_unknown_or_far_off_is_words(spec, tmp_path):
    for capacity, words in ((None, "The memory is not known."), (2000 * GIB, "2000.00 GiB, is beyond the axis.")):
        path = tmp_path / "plan.html"
        write_html(path, planned(spec, capacity), "", Page(()))
        assert path.read_text().count(words) >= 2


@pytest.mark.slow
def test_the_files_are_a_page_and_a_picture(spec, tmp_path):
    plan = planned(spec)
    write_html(tmp_path / "plan.html", plan, "tp=4", Page(("the table",)))
    page = (tmp_path / "plan.html").read_text()
    assert page.count("<figure>") == 2
    assert page.index("Memory by stage and part") < page.index("Settings by memory and time") < page.index("the table")
    assert "tp=4: TP 1, PP 2" in page
    write_png(tmp_path / "plan.png", plan, "")
    content = (tmp_path / "plan.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert struct.unpack(">II", content[16:24]) > (1200, 1200)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--png", "plan.pdf"), "--png plan.pdf: of no known format\n  name a file *.png, *.svg"),
        (("--html", "plan.png"), "--html plan.png: of no known format\n  name a file *.html"),
        (("--png", "nowhere/plan.png"), "--png nowhere/plan.png: there is no folder nowhere"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_traced(mbr_perf, options, message):
    answer = mbr_perf("plan", "-mr", "llama3_8b", "-g", "h100", *options)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"error: {message}")


def test_a_calibration_has_no_pictures(mbr_perf):
    answer = mbr_perf("plan", "--calibrate", "RUN", "--png", "a.png")
    assert (answer.code, "--calibrate plans nothing that a file could show" in answer.err) == (2, True)
