"""Requests in words, and the values of JSON documents, whose keys tests/data/schemas pins."""

import math
from pathlib import Path

from harness.experiment.effective import effective_recompute, settled_implementation
from harness.experiment.rules.rule import Finding
from harness.judge.compare import compare_runs
from harness.judge.gate import run_outcome
from harness.measure import values
from harness.records.gating import GateOptions
from harness.records.goldens import GoldenSearch
from harness.records.rank import Failure
from harness.show import json
from harness.show.request_text import effect_rows, explanation, finding_lines, request_facts, request_rows
from tests.commands import json_of


def effect_of(spec):
    return effective_recompute(spec, settled_implementation(spec))


def test_a_request_is_shown_in_five_lines(make_spec):
    spec = make_spec()
    assert request_rows(spec) == [
        ("Recipe", "llama3_70b, sft, fp8_cs, 32 x H100 80GB SXM"),
        ("Parallelism", "TP 4, PP 4, VP 5, CP 1, DP 2, sequence parallel"),
        ("Batch", "micro 1, global 32 (16 micro-batches), sequence 4096, 50 steps"),
        ("Recompute", "core_attn"),
        ("Fingerprint", spec.fingerprint),
    ]


def test_context_parallelism_by_all_to_all_is_named(make_spec):
    cut = {"context_parallel_size": 2, "cp_comm_type": "a2a"}
    assert request_rows(make_spec(parallelism=cut))[1] == ("Parallelism", "TP 1, PP 1, CP 2 (a2a), DP 16")


def test_rows_of_a_request_can_be_left_out(make_spec):
    facts = request_facts(make_spec(), without=("Recompute", "Batch"))
    assert [name for name, _ in facts.rows] == ["Recipe", "Parallelism", "Fingerprint"]


def test_one_rank_is_not_shown_in_the_plural(make_spec):
    rows = request_rows(make_spec(gpu="cpu", num_gpus=1))
    assert rows[0] == ("Recipe", "llama3_8b, pretrain, fp32, 1 CPU rank")
    assert request_rows(make_spec(gpu="cpu"))[0][1].endswith("2 CPU ranks")


def test_the_effect_names_modules_with_their_layers(make_spec):
    lines = effect_rows(effect_of(make_spec(recompute="core_attn,mlp")))
    assert lines[0] == ("Recomputed", "core_attn: 80 of 80 layers")
    assert lines[1] == ("Recomputed", "mlp: 80 of 80 layers")


def test_modules_without_effect_are_reported_with_the_reason(make_spec):
    lines = effect_rows(effect_of(make_spec(recompute="mlp,moe_act")))
    assert [text.partition(":")[0] for name, text in lines if name == "No effect"] == ["moe_act"]


def test_full_recompute_is_shown_in_layers(make_spec):
    lines = effect_rows(effect_of(make_spec(recompute="full:block:1")))
    assert lines[0] == ("Recomputed", "20 of 80 layers, whole")


def test_a_setting_without_any_effect_has_a_line_about_it(make_spec):
    lines = effect_rows(effect_of(make_spec(recompute="moe_act")))
    assert lines[0][0] == "Recomputed" and lines[0][1].startswith("nothing")
    assert effect_rows(effect_of(make_spec(recompute="none"))) == []


def test_findings_are_shown_with_what_to_do():
    found = [
        Finding(id="R10", severity="warning", message="frees nothing", fix="drop it"),
        Finding(id="A01", severity="error", message="six", fix="use 6"),
    ]
    assert finding_lines(found).items == ("Warning: R10: frees nothing; drop it", "Forced: A01: six; use 6")


def test_every_setting_is_shown_with_its_source_and_defaults_come_last(make_spec):
    sources = {
        "recompute": "--recompute_modules",
        "model.num_layers": "llama3_70b.yaml:12",
        "parallelism": "default",
        "env.NCCL_DEBUG": "-E",
        "batch.seq_length": "llama3_70b.yaml:30",
        "variant": "--variant fsdp",
    }
    given, _, defaults = explanation(make_spec(env={"NCCL_DEBUG": "WARN"}), sources)
    rows = given.rows
    assert [row[0] for row in rows] == [
        "batch.seq_length", "env.NCCL_DEBUG", "model.num_layers", "recompute", "variant",
    ]  # fmt: skip
    assert rows[0][1:] == ("llama3_70b.yaml:30", "4096")
    assert rows[1][1:] == ("-E", "WARN")
    assert rows[3][1:] == ("--recompute_modules", "core_attn")
    assert rows[4][1:] == ("--variant fsdp", "fsdp")
    [(path, value)] = defaults.rows
    assert path == "parallelism" and "tensor_model_parallel_size 4" in value
    assert not any(column.drop for column in given.columns)  # a narrow terminal keeps the sources


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
