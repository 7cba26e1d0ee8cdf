"""The values of JSON documents; tests/data/schemas pins their keys."""

import math
from pathlib import Path

from harness.judge.compare import compare_runs
from harness.judge.gate import run_outcome
from harness.measure import values
from harness.records.gating import GateOptions
from harness.records.goldens import GoldenSearch
from harness.records.rank import Failure
from harness.show import json
from tests.commands import json_of


def run_document(record, golden=None):
    search = GoldenSearch(golden, Path("golden.json") if golden else None, "none there")
    metrics, comparison = compare_runs([record], search, GateOptions())
    verdict = run_outcome(record.status, comparison)
    return json_of(values.run_document(record, metrics, comparison, verdict, Path("runs/x"), [record.run_id]))


def test_the_values_of_a_run_are_those_that_were_measured(make_record, make_golden):
    record = make_record(seconds=2.5)
    answer = run_document(record, make_golden(record, {"tflops_per_gpu": 800.0}))
    assert answer["metrics"]["step_time_s"] == {"median": 2.5, "mean": 2.5, "stdev": 0.0, "n": 15, "window": [35, 50]}
    assert answer["metrics"]["peak_allocated_bytes"]["value"] == 58_000_000_000
    assert answer["spec"]["num_gpus"] == 32
    assert len(answer["ranks"]) == 32
    first = answer["comparison"][0]
    assert (first["metric"], first["golden"], first["threshold"], first["verdict"]) == (
        "tflops_per_gpu", 800.0, 0.05, "regression",
    )  # fmt: skip
    assert answer["golden"]["path"] == "golden.json"


def test_what_is_absent_is_null_with_its_reason(make_spec, make_record):
    answer = run_document(make_record(make_spec(gpu="cpu")))
    assert answer["metrics"]["peak_device_bytes"] is None
    assert "CPU" in answer["metrics"]["problems"]["peak_device_bytes"]
    assert (answer["golden"], answer["note"], answer["prediction"]) == (None, "none there", None)
    assert (answer["outcome"], answer["exit_code"]) == ("pass", 0)


class Figures(json.Document):
    value: float
    values: tuple[float, ...]


def test_not_a_number_never_reaches_a_reader():
    figures = Figures(value=math.nan, values=(1.5, math.inf))
    assert json_of(figures) == {"schema_version": 1, "value": None, "values": [1.5, None]}


def test_a_run_that_was_out_of_memory_has_the_class_and_the_figures_behind_it(make_spec, make_rank, make_record):
    spec = make_spec()
    full = Failure(
        kind="oom", message="CUDA out of memory. Tried to allocate 512.00 GiB. GPU 0 has a total capacity of 79.00 GiB"
    )
    record = make_record(spec, ranks=(make_rank(spec, 0, 1.0, failure=full),), status="oom")
    why = run_document(record)["out_of_memory"]
    assert (why["rank"], why["class"], why["confidence"]) == (0, "bad_size", "high")
    assert (why["figures"]["tried_bytes"], why["figures"]["total_bytes"]) == (512 * 1024**3, 79 * 1024**3)
    assert run_document(make_record(spec))["out_of_memory"] is None
