"""Earlier nights show how much equal runs of a case differ."""

import pytest

from harness.explain.facts import run_side
from harness.explain.judge import explain
from harness.explain.references import with_history
from harness.history.record import Occasion, history_record
from harness.history.store import write_history
from harness.judge.derive import derive

NIGHTS = ((2.48, 2.52), (2.50, 2.54), (2.46, 2.50))


@pytest.fixture(name="history")
def _history(tmp_path, make_record):
    """Three nights of two runs each."""
    for night, seconds in enumerate(NIGHTS, start=1):
        for number, each in enumerate(seconds):
            record = make_record(
                seconds=each,
                run_id=f"night{night}.case.{number}",
                provenance={"started_at": f"2026-01-0{night}T03:00:00Z"},
            )
            occasion = Occasion(suite="suite", suite_case="case", night_id=f"night{night}", outcome="pass")
            write_history(tmp_path, history_record(record, derive(record), occasion))
    return tmp_path


def later(make_record, seconds, **provenance):
    return make_record(seconds=seconds, run_id="later", provenance={"started_at": "2026-02-01T03:00:00Z"} | provenance)


def test_a_change_that_nights_show_too_is_called_noise(history, make_record):
    record = later(make_record, 2.54)
    side = with_history(run_side(record), record, history)
    found = explain(side, run_side(make_record(seconds=2.5), name="other"))
    (step,) = [change for change in found.metrics if change.metric == "step_time_s"]
    assert 0.02 < step.noise < 0.05
    assert step.is_noise
    assert "about 6 runs of earlier nights vary by" in found.verdict[0]


@pytest.mark.parametrize(("folder", "driver"), [("history", "570.1"), ("tmp_path", "550.54.15")])
def test_without_nights_on_the_same_driver_the_noise_is_unknown(request, make_record, folder, driver):
    record = later(make_record, 2.54, driver_version=driver)
    side = run_side(record)
    assert with_history(side, record, request.getfixturevalue(folder)) == side
