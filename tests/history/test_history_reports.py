"""What history keeps of a run, as CSV, and as a chart's specification."""

import pytest

from harness.errors import BadRequestError
from harness.experiment.flops import FORMULA_VERSION
from harness.history import run
from harness.history.cases import GoldenBand, explained
from harness.history.changes import ChangePoint
from harness.history.chart import trend_picture
from harness.history.record import Occasion, history_record
from harness.history.series import series_of
from harness.judge.derive import derive
from harness.records.metrics import BY_NAME
from harness.show.figures import csv_text
from harness.show.svg import svg_file

METRIC = BY_NAME["tflops_per_gpu"]


def history_of(records, points=(), golden=None):
    history = run.history_of(series_of(records), METRIC)
    found = tuple(explained(history.measured, point) for point in points)
    return history.model_copy(update={"change_points": found, "golden": golden})


@pytest.fixture
def nights(make_kept):
    """Eight nights; the fifth and later with another torch, one night failed."""
    records = [
        make_kept(n, 700.0 - 30 * (n >= 4), versions={"torch": "2.10.0" if n >= 4 else "2.9.1"}) for n in range(8)
    ]
    return [*records, make_kept(8, status="failed", metrics={})]


def test_texts_that_a_spreadsheet_would_run_are_quoted():
    assert csv_text(["commit", "branch"], [["=cmd()", "main"], [None, "-x"]]) == "commit,branch\n'=cmd(),main\n,'-x\n"


def test_the_chart_has_every_night_that_measured_the_figure(nights):
    picture = trend_picture(history_of(nights))
    points = picture.chart.points
    assert [point.y for point in points] == [700.0] * 4 + [670.0] * 4
    assert [point.note.partition(":")[0] for point in points] == [f"run000{n}" for n in range(8)]
    assert picture.title.endswith(", 8 of 9 nights")


def test_the_chart_has_the_golden_band_and_the_change_points(nights, tmp_path):
    band = GoldenBand(tmp_path / "golden.json", 700.0, 0.05, 665.0, 735.0)
    chart = trend_picture(history_of(nights, [ChangePoint(4, 700.0, 670.0, 1e-6)], band)).chart
    assert [(curve.below[0], curve.places[0][1]) for curve in chart.curves if curve.below] == [(665.0, 735.0)]
    assert [limit.text for limit in chart.across] == ["-4.3 %"]
    assert chart.points[3].x < chart.across[0].at <= chart.points[4].x


def test_a_change_one_night_beside_the_point_is_reported_with_its_night(nights):
    changes = {at: history_of(nights, [ChangePoint(at, 700.0, 670.0, 1e-6)]).change_points[0] for at in (3, 4, 5, 6)}
    words = {at: (found.changed_where or "").rpartition(" ")[2] for at, found in changes.items()}
    assert words == {3: "after", 4: "", 5: "before", 6: ""}
    assert {at: [change.name for change in found.changed] for at, found in changes.items()} == {
        3: ["torch", "commit"],
        4: ["torch", "commit"],
        5: ["torch", "commit"],
        6: ["commit"],
    }


def test_one_night_is_a_picture_and_none_is_refused(make_kept):
    assert svg_file(trend_picture(history_of([make_kept(0)]))).count('class="mark"') == 2  # and that of the legend
    with pytest.raises(BadRequestError, match="tflops_per_gpu"):
        trend_picture(history_of([make_kept(0, status="failed")]))


def test_history_keeps_the_figures_the_software_and_the_occasion_of_a_run(make_record):
    where = {"git_commit": "abc", "git_branch": "main", "container": "nemo.sqsh", "job_id": "7"}
    record = make_record(seconds=2.0, provenance=where)
    metrics = derive(record)
    occasion = Occasion(suite="h100_nightly", night_id="n1", purpose="confirm", outcome="regression")
    kept = history_record(record, metrics, occasion)
    assert kept.metrics["step_time_s"].value == 2.0
    assert kept.metrics["tflops_per_gpu"].value == metrics.tflops_per_gpu.median
    assert kept.metrics["tflops_per_gpu"].n == metrics.tflops_per_gpu.n
    assert (kept.metrics["peak_allocated_bytes"].value, kept.metrics["peak_allocated_bytes"].n) == (
        58_000_000_000,
        None,
    )
    assert kept.formula_version == FORMULA_VERSION
    assert (kept.git_commit, kept.branch, kept.container, kept.job_id) == ("abc", "main", "nemo.sqsh", "7")
    assert (kept.versions, kept.driver_version) == (record.provenance.versions, "550.54.15")
    assert (kept.suite, kept.night_id, kept.purpose, kept.outcome) == ("h100_nightly", "n1", "confirm", "regression")


def test_the_case_is_the_place_of_its_golden_and_a_memory_limit_makes_another(make_record, make_spec):
    free, limited = (
        make_record(make_spec(gpu="cpu", recompute="mlp", measure={"max_steps": 9, "memory_limit_bytes": limit}))
        for limit in (None, 2**30 // 8)
    )
    kept = [history_record(record, derive(record)) for record in (free, limited)]
    assert kept[0].fingerprint == kept[1].fingerprint == free.fingerprint
    assert kept[0].device_name == "A Processor"
    cases = [record.case for record in kept]
    assert cases == ["cpu/llama3_8b.pretrain.fp32.2gpu.mlp", "cpu/llama3_8b.pretrain.fp32.2gpu.mlp@0.125GiB"]


def test_what_a_failed_run_did_not_measure_is_left_out_and_its_failure_is_one_line(make_record):
    record = make_record(ranks=(), status="failed", failure="rank 3 died\nTraceback ...")
    kept = history_record(record, derive(record))
    assert (kept.status, kept.failure, kept.metrics) == ("failed", "rank 3 died", {})
