"""History as CSV, as one line of bars, and as a chart's specification."""

import json

import pytest

from harness.history.cases import CaseHistory, GoldenBand, explained
from harness.history.changes import ChangePoint, trend
from harness.history.chart import trend_picture
from harness.history.run import history_csv
from harness.history.series import series_of
from harness.records.metrics import BY_NAME
from harness.show.figures import csv_text, sparkline

METRIC = BY_NAME["tflops_per_gpu"]


def history_of(records, points=(), golden=None):
    series = series_of(records)
    measured = series.measured(METRIC)
    judged = trend([value for _, value in measured], METRIC.better) if measured else None
    return CaseHistory(
        series, METRIC, measured, tuple(explained(measured, point) for point in points), "", judged, golden, ""
    )


@pytest.fixture
def nights(make_kept):
    """Eight nights; the fifth and later with another torch, one night failed."""
    records = [
        make_kept(n, 700.0 - 30 * (n >= 4), versions={"torch": "2.10.0" if n >= 4 else "2.9.1"}) for n in range(8)
    ]
    return [*records, make_kept(8, status="failed", metrics={})]


def rows_of(picture):
    """Everything that the chart shows, whichever layer it is in."""
    return [row for rows in json.loads(picture.vega_lite)["datasets"].values() for row in rows]


def test_a_line_of_bars_rises_with_the_values():
    assert sparkline([1.0, 2.0, 3.0], 10) == "▁▅█"
    assert sparkline([5.0, None, 5.0], 10) == "▅ ▅"
    assert sparkline([1.0, 2.0, 3.0], 2) == "▁█"
    assert sparkline([None], 10) == ""


def test_texts_that_a_spreadsheet_would_run_are_quoted():
    assert csv_text(["commit", "branch"], [["=cmd()", "main"], [None, "-x"]]) == "commit,branch\n'=cmd(),main\n,'-x\n"


def test_nights_without_the_figure_are_no_rows_and_are_reported(nights):
    text, notes = history_csv(history_of(nights))
    assert len(text.splitlines()) == 1 + 8
    assert notes == ("not in the CSV: 1 night without tflops_per_gpu",)


def test_the_chart_has_every_night_with_its_versions_and_what_changed(nights):
    picture = trend_picture(history_of(nights))
    shown = [row for row in rows_of(picture) if "night" in row]
    assert {row["value"] for row in shown if row["night"] == "run0000"} == {700.0}
    assert {row["night"] for row in shown} == {f"run000{n}" for n in range(8)}
    (changed,) = {row["changed"] for row in shown if row["night"] == "run0004"}
    assert changed == "torch 2.9.1 -> 2.10.0"
    assert {row["versions"] for row in shown} == {"torch 2.9.1", "torch 2.10.0"}
    assert "Not shown: 1 night without this metric." in picture.caption


def test_the_chart_has_the_golden_band_and_the_change_points(nights, tmp_path):
    band = GoldenBand(tmp_path / "golden.json", 700.0, 0.05, 665.0, 735.0)
    picture = trend_picture(history_of(nights, [ChangePoint(4, 700.0, 670.0, 1e-6)], band))
    rows = rows_of(picture)
    assert {(row["low"], row["high"]) for row in rows if "golden" in row} == {(665.0, 735.0)}
    assert {row["change"] for row in rows if "change" in row} == {"-4.3 %"}


def test_a_golden_far_off_is_reported_and_not_drawn(nights, tmp_path):
    picture = trend_picture(history_of(nights, golden=GoldenBand(tmp_path / "golden.json", 70.0, 0.05, 66.5, 73.5)))
    assert [row for row in rows_of(picture) if "golden" in row] == []
    assert "The golden, 70 ± 5 %, is outside the chart." in picture.caption


def test_a_change_one_night_beside_the_point_is_reported_with_its_night(nights):
    changes = {at: history_of(nights, [ChangePoint(at, 700.0, 670.0, 1e-6)]).change_points[0] for at in (3, 4, 5, 6)}
    assert {at: found.changed_where for at, found in changes.items()} == {
        3: "one night after",
        4: None,
        5: "one night before",
        6: None,
    }
    assert {at: [change.name for change in found.changed] for at, found in changes.items()} == {
        3: ["torch", "commit"],
        4: ["torch", "commit"],
        5: ["torch", "commit"],
        6: ["commit"],
    }


def test_one_night_is_a_picture_and_none_is_a_reason(make_kept):
    assert trend_picture(history_of([make_kept(0)])).vega_lite is not None
    picture = trend_picture(history_of([make_kept(0, status="failed")]))
    assert (picture.vega_lite, picture.caption) == (None, "No night of this case has tflops_per_gpu.")
