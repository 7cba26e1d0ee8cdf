"""The prediction of a run compared with its measurement."""

import re

import pytest

from harness.judge.derive import derive
from harness.measure.prediction import misfit_line, prediction_line
from harness.measure.values import prediction_document, whole_run
from harness.records.prediction import PredictionRecord, StagePrediction
from tests.commands import json_of
from tests.conftest import build_spec


def stage(pp_rank, activations):
    parts = {"weights": 10, "gradients": 20, "optimizer": 30, "logits": 0, "transient": 5, "overhead": 1}
    return StagePrediction(
        pp_rank=pp_rank, activations=activations, total=sum(parts.values()) + activations, peak="schedule", **parts
    )


@pytest.fixture
def predicted():
    return PredictionRecord(
        peak_bytes=60_900_000_000,
        range_bytes=(59_000_000_000, 62_000_000_000),
        stages=(stage(0, 60_900_000_000 - 66), stage(1, 50_000_000_000)),
        model_flops=10,
        recompute_flops=1,
        step_time_s=0.9,
        step_time_range_s=(0.8, 1.2),
        assumptions=("nothing is taken for granted",),
    )


def test_the_error_is_predicted_over_measured_less_one(make_record, predicted):
    record = make_record(prediction=predicted)
    document = json_of(prediction_document(record.prediction, "", derive(record)))
    assert (document["measured_peak_bytes"], document["measured_step_time_s"]) == (58_000_000_000, 1.0)
    assert document["peak_error"] == pytest.approx(0.05)
    assert document["step_time_error"] == pytest.approx(-0.1)
    assert document["worst_stage"] == 0


def test_one_line_holds_peak_and_time(predicted):
    assert prediction_line(predicted, "") == (
        "Predicted: peak 56.72 GiB, 54.95 GiB to 57.74 GiB, stage 0; step 900.0 ms, 800.0 ms to 1.200 s"
    )


def test_reserved_bytes_stand_beside_their_prediction(make_record, predicted):
    weighed = predicted.model_copy(update={"reserved_bytes": 65_100_000_000})
    record = make_record(prediction=weighed)
    document = json_of(prediction_document(weighed, "", derive(record)))
    assert document["measured_reserved_bytes"] == 62_000_000_000
    assert document["reserved_error"] == pytest.approx(0.05)


def test_a_measured_peak_is_compared_with_the_steps_before_cuda_graphs_too(make_record, predicted):
    stages = (predicted.stages[0].model_copy(update={"whole_run": 69_600_000_000}), predicted.stages[1])
    record = make_record(prediction=predicted.model_copy(update={"stages": stages}))
    document = json_of(prediction_document(record.prediction, "", derive(record)))
    assert (document["peak_bytes"], document["whole_run_peak_bytes"]) == (60_900_000_000, 69_600_000_000)
    assert document["peak_error"] == pytest.approx(0.2)
    assert record.prediction.stages[0].parts["activations"] == 60_900_000_000 - 66


def test_a_run_without_measurement_shows_the_prediction_alone(make_record, predicted):
    document = json_of(prediction_document(predicted, "", derive(make_record(ranks=()))))
    assert (document["measured_peak_bytes"], document["peak_error"], document["step_time_error"]) == (None, None, None)


def test_the_reason_stands_where_there_is_no_prediction():
    assert json_of(prediction_document(None, "why")) == {"reason": "why"}
    assert prediction_line(None, "why") == "Not predicted: why"


def test_the_peak_so_far_of_a_run_out_of_memory_proves_no_prediction_wrong(make_record, predicted):
    record = make_record(prediction=predicted, status="oom")
    document = json_of(prediction_document(predicted, "", whole_run(record, derive(record))))
    assert "peak_error" not in document


@pytest.mark.parametrize(
    ("sizes", "limit_gb", "warning"),
    [
        ((58, 62), 60, "^$"),
        ((58, 62), 59, "^Warning: .* 54.02 GiB to 57.74 GiB .* 53.85 GiB"),
        (None, 57, "^$"),
        (None, 40, "^Warning: weights, .* 43.83 GiB .* 36.51 GiB"),
    ],
)
def test_what_cannot_fit_into_a_rank_is_a_warning(predicted, sizes, limit_gb, warning):
    spec = build_spec(measure={"max_steps": 50, "memory_limit_bytes": limit_gb * 10**9})
    record = predicted.model_copy(update={"range_bytes": tuple(x * 10**9 for x in sizes)}) if sizes else None
    assert re.search(warning, misfit_line(record, spec))
