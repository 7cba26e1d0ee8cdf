"""The JSON documents keep the keys of the contract."""

import json as stdlib_json
import math
from pathlib import Path

import pytest

from harness.judging.compare import compare_runs
from harness.judging.gate import comparison_outcome, run_outcome
from harness.records.goldens import GateOptions, GoldenSearch
from harness.records.rank import Failure
from harness.showing import json

RUN_KEYS = {
    "schema_version", "run_id", "outcome", "exit_code", "run_dir", "spec", "effective", "metrics", "ranks", "comparison",
    "prediction", "provenance",
}  # fmt: skip
SUMMARY_KEYS = {"median", "mean", "stdev", "n", "window"}
FINDING_KEYS = {"metric", "current", "golden", "change", "threshold", "verdict"}


def run_document(record, golden=None, **changes):
    search = GoldenSearch(golden, Path("golden.json") if golden else None, "none there")
    metrics, comparison = compare_runs([record], search, GateOptions())
    verdict = run_outcome(record.status, comparison)
    document = json.run_document(record, metrics, comparison, verdict, Path("runs/x"), **changes)
    return stdlib_json.loads(json.text(document))


def test_a_run_has_the_keys_of_the_contract(make_record, make_golden):
    record = make_record(seconds=2.5)
    document = run_document(record, make_golden(record, {"tflops_per_gpu": 800.0}))
    assert document.keys() >= RUN_KEYS
    assert (document["schema_version"], document["outcome"], document["exit_code"]) == (1, "regression", 5)
    assert document["effective"].keys() >= {"recompute", "inert_modules"}
    for name in ("tflops_per_gpu", "step_time_s", "tokens_per_s_per_gpu"):
        assert document["metrics"][name].keys() >= SUMMARY_KEYS
    for name in ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes"):
        assert document["metrics"][name].keys() >= {"value", "rank"}
    assert all(finding.keys() >= FINDING_KEYS for finding in document["comparison"])


def test_the_values_of_a_run_are_those_that_were_measured(make_record, make_golden):
    record = make_record(seconds=2.5)
    document = run_document(record, make_golden(record, {"tflops_per_gpu": 800.0}))
    assert document["metrics"]["step_time_s"] == {"median": 2.5, "mean": 2.5, "stdev": 0.0, "n": 15, "window": [35, 50]}
    assert document["metrics"]["peak_allocated_bytes"]["value"] == 58_000_000_000
    assert document["spec"]["num_gpus"] == 32
    assert len(document["ranks"]) == 32
    first = document["comparison"][0]
    assert (first["metric"], first["golden"], first["threshold"], first["verdict"]) == (
        "tflops_per_gpu", 800.0, 0.05, "regression",
    )  # fmt: skip
    assert document["golden"]["path"] == "golden.json"


def test_what_is_absent_is_null_with_its_reason(make_spec, make_record):
    document = run_document(make_record(make_spec(gpu="cpu")))
    assert document["metrics"]["peak_device_bytes"] is None
    assert document["metrics"]["problems"]["peak_device_bytes"] == "a CPU run has no device memory"
    assert (document["golden"], document["note"], document["prediction"]) == (None, "none there", None)
    assert (document["outcome"], document["exit_code"]) == ("pass", 0)


def test_a_prediction_is_passed_through(make_record):
    assert run_document(make_record(), prediction={"peak_bytes": 1})["prediction"] == {"peak_bytes": 1}


def test_a_comparison_has_the_keys_of_the_contract(make_record, make_golden):
    record = make_record(seconds=2.5)
    golden = make_golden(make_record(provenance={"driver_version": "1"}), {"tflops_per_gpu": 709.0})
    metrics, comparison = compare_runs([record], GoldenSearch(golden, Path("g.json")), GateOptions())
    document = json.compare_document((record,), metrics, comparison, comparison_outcome(comparison))
    document = stdlib_json.loads(json.text(document))
    assert document.keys() >= {"schema_version", "outcome", "exit_code", "comparison"}
    assert (document["outcome"], document["exit_code"]) == ("inconclusive", 6)
    (difference,) = document["differences"]
    assert (difference["name"], difference["golden"], difference["current"]) == ("driver_version", "1", "550.54.15")


def test_not_a_number_never_reaches_a_reader():
    with pytest.raises(ValueError, match="not JSON compliant"):
        json.text({"value": math.nan})


def test_a_run_that_was_out_of_memory_has_the_class_and_the_figures_behind_it(make_spec, make_rank, make_record):
    spec = make_spec()
    full = Failure(
        kind="oom", message="CUDA out of memory. Tried to allocate 512.00 GiB. GPU 0 has a total capacity of 79.00 GiB"
    )
    record = make_record(spec, ranks=(make_rank(spec, 0, 1.0, failure=full),), status="oom")
    told = run_document(record)["out_of_memory"]
    assert (told["rank"], told["class"], told["confidence"]) == (0, "bad_size", "high")
    assert (told["figures"]["tried_bytes"], told["figures"]["total_bytes"]) == (512 * 1024**3, 79 * 1024**3)
    assert run_document(make_record(spec))["out_of_memory"] is None
