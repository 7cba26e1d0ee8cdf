"""`mbr-perf history`: cases, one case night by night, CSV, and runs taken in."""

import csv
import io
import json
import random
import re
import shutil
from pathlib import Path

import pytest

from harness.history.store import read_history, write_history
from harness.records.golden import golden_text
from tests.conftest import build_kept, build_spec

ROOT = Path(__file__).parents[2]
CASE = "h100/llama3_70b.sft.fp8_cs.32gpu.none"
FINGERPRINT = build_spec(recompute="none").fingerprint
OTHER = "b200/llama3_8b.pretrain.fp8_mx.8gpu.mlp"


def nightly(make_kept, number, run, tflops, **changes):
    night = f"20260101T020000Z-h100_nightly-{number:08x}"
    outcome = changes.pop("outcome", "pass")
    return make_kept(
        number, tflops, run_id=f"{night}.l70b.{run}", night_id=night, suite="h100_nightly", suite_case="l70b",
        outcome=outcome, fingerprint=FINGERPRINT, **changes,
    )  # fmt: skip


@pytest.fixture(name="written", scope="module")
def _written(tmp_path_factory):
    """Thirty nights of three runs; from the twentieth on 5 % slower, on another torch. And a run of another case."""
    draw, folder = random.Random(7), tmp_path_factory.mktemp("written")
    records = [build_kept(3, 1400.0, run_id="adhoc", case=OTHER)]
    for number in range(30):
        for run in range(3):
            level, torch = (700.0, "2.9.1") if number < 20 else (665.0, "2.10.0")
            tflops = level * (1 + draw.gauss(0, 0.008))
            versions = {"torch": torch, "megatron-core": "0.16.1"}
            records.append(nightly(build_kept, number, run, tflops, versions=versions))
    write_history(folder, records)
    return folder


@pytest.fixture(name="results")
def _results(written, tmp_path):
    """A copy of it."""
    shutil.copytree(written / "history", tmp_path / "history")
    return tmp_path


@pytest.fixture
def ask(mbr_perf, results):
    """The command on that history."""

    def run(*arguments):
        return mbr_perf("history", *arguments, "--results_dir", results)

    return run


def test_every_case_is_listed_with_where_it_stands(ask):
    document = json.loads(ask("--json").out)
    assert [(case["case"], case["num_nights"], case["num_runs"]) for case in document["cases"]] == [
        (OTHER, 1, 1),
        (CASE, 30, 90),
    ]
    assert [case["last_outcome"] for case in document["cases"]] == ["ok", "pass"]
    assert [case["trend"]["word"] for case in document["cases"]] == ["new", "steady"]
    other, case = (line.split() for line in ask().out.splitlines() if line.startswith((OTHER, CASE)))
    assert other[:3] == [OTHER, "1", "1"]
    assert (case[-4], case[-1]) == ("steady", "pass")


def test_the_list_names_which_runs_it_leaves_out_for_their_settings(ask, results, make_kept):
    write_history(results, [make_kept(31, fingerprint="other")])
    out = " ".join(ask().out.split())
    assert (f"{CASE} 1 1 " in out, " 90 runs with other settings " in out) == (True, True)
    counted = {case["case"]: case["num_runs_of_other_settings"] for case in json.loads(ask("--json").out)["cases"]}
    assert counted == {OTHER: 0, CASE: 90}


def test_a_case_is_shown_night_by_night_and_a_planted_step_is_a_change_point_with_its_torch(ask):
    lines = ask(CASE).out.splitlines()
    (changed,) = (line for line in lines if line.endswith("torch 2.9.1 -> 2.10.0") and line.startswith("2026-01-21"))
    assert re.fullmatch(
        r"2026-01-21T02:00Z +6\d\d\.\d+ +\d\.\d % +3 of 3 +pass +00000014 +torch 2.9.1 -> 2.10.0", changed
    )
    assert sum(line.startswith("2026-") for line in lines) == 30
    (line,) = (line for line in lines if line.startswith("Change point 2026-01-21T02:00Z: "))
    assert "(worse)" in line and "torch 2.9.1 -> 2.10.0" in line
    (point,) = json.loads(ask(CASE, "--json").out)["change_points"]
    assert point["started_at"].startswith("2026-01-21")
    assert point["change"] == pytest.approx(-0.05, abs=0.01)
    assert {"name": "torch", "before": "2.9.1", "after": "2.10.0"} in point["changed"]


@pytest.mark.parametrize("name", ["l70b", "h100/llama3_70b", "llama3_70b.sft"])
def test_a_case_is_found_by_its_suites_name_or_a_part(ask, name):
    assert json.loads(ask(name, "--json").out)["case"] == CASE


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["llama3"], [f"one of: {OTHER}, {CASE}"]),
        (["llama3_71b"], ["no case 'llama3_71b'"]),
        (["l70b", "--metric", "tflops"], ["'tflops_per_gpu'?"]),
        (["--fingerprint", "3"], ["--fingerprint: name a case"]),
        (["l70b", "--csv", "--json"], ["--csv", "--json"]),
    ],
)
def test_a_wrong_request_shows_what_would_be_right(ask, arguments, expected):
    answer = ask(*arguments)
    assert answer.code == 2
    assert [text for text in expected if text not in answer.err] == []


def test_runs_that_do_not_count_are_named_with_the_reason(ask, results, make_kept):
    failed = nightly(make_kept, 29, 3, 300.0, status="failed", failure="rank 3 died")
    write_history(results, [failed, nightly(make_kept, 29, 4, 300.0, suspect=("clocks throttled",))])
    out = ask(CASE).out
    assert re.search(r"2026-01-30T02:00Z +6\d\d\.\d+ +\d\.\d % +3 of 5 ", out)
    assert "Not counted: 2 runs, the last 20260101T020000Z-h100_nightly-0000001d.l70b.4: clocks throttled" in out


def test_no_history_names_who_writes_it(mbr_perf, tmp_path):
    answer = mbr_perf("history", "--results_dir", tmp_path)
    assert answer.code == 0 and "history add RUN" in answer.out
    named = mbr_perf("history", "x", "--results_dir", tmp_path)
    assert (named.code, "history add RUN" in named.err, "known: ;" in named.err) == (2, True, False)


def test_a_run_from_the_future_counts_for_nothing(ask, results):
    write_history(results, [build_kept(31, 650.0, run_id="ahead", case=OTHER, started_at="2931-01-01T02:00:00Z")])
    assert "started_at '2931-01-01T02:00:00Z' " in ask(OTHER, "-v").err
    (case,) = [case for case in json.loads(ask("--json").out)["cases"] if case["case"] == OTHER]
    assert case["num_runs"] == 1


def test_the_csv_has_a_line_for_each_run_of_a_case_or_of_all(ask):
    rows = list(csv.DictReader(io.StringIO(ask(CASE, "--csv").out)))
    nights = json.loads(ask(CASE, "--json").out)["nights"]
    runs = [run for night in nights for run in night["runs"]]
    assert [(row["run_id"], float(row["tflops_per_gpu"])) for row in rows] == [(r["run_id"], r["value"]) for r in runs]
    every = list(csv.DictReader(io.StringIO(ask("--csv").out)))
    assert len(every) == 91
    (adhoc,) = [row for row in every if row["run_id"] == "adhoc"]
    assert (adhoc["case"], float(adhoc["tflops_per_gpu"]), adhoc["night_id"]) == (OTHER, 1400.0, "")


def test_a_golden_of_the_same_settings_is_the_band(ask, tmp_path, make_golden, make_record, make_spec):
    record = make_record(make_spec(recompute="none"))
    golden = make_golden(record, {"tflops_per_gpu": 700.0})
    path = tmp_path / "golden" / f"{CASE}.json"
    path.parent.mkdir(parents=True)
    path.write_text(golden_text(golden))
    band = json.loads(ask(CASE, "--golden_dir", tmp_path / "golden", "--json").out)["golden"]
    assert (band["value"], band["threshold"], band["low"], band["high"]) == (700.0, 0.05, 665.0, 735.0)
    write_history(tmp_path, [nightly(build_kept, 30, 0, 665.0, allowed={"tflops_per_gpu": 0.02})])
    band = json.loads(ask(CASE, "--golden_dir", tmp_path / "golden", "--json").out)["golden"]
    assert (band["threshold"], band["allowed_by"], band["low"]) == (0.02, "the last night", 686.0)
    other = make_record(make_spec(recompute="none", optimizer={"lr": 0.5}))
    path.write_text(make_golden(other, {"tflops_per_gpu": 700.0}).model_dump_json())
    document = json.loads(ask(CASE, "--golden_dir", tmp_path / "golden", "--json").out)
    assert document["golden"] is None and document["no_golden"]


def test_a_run_is_taken_into_history_once(mbr_perf, replay, tmp_path):
    assert replay("ok").code == 0
    results = tmp_path / "results"
    (run_dir,) = (results / "runs").iterdir()
    first = mbr_perf("history", "add", run_dir, "--results_dir", results)
    assert (first.code, first.out.splitlines()[0]) == (0, "1 of 1 run added.")
    again = mbr_perf("history", "add", run_dir.name, run_dir / "record.json", "--results_dir", results)
    assert again.out.splitlines()[0] == "0 of 1 run added."
    (record,) = read_history(results)
    assert record.run_id == run_dir.name
    assert record.metrics["step_time_s"].value > 0


def test_failed_runs_are_taken_in_with_their_status(mbr_perf, replay, tmp_path):
    assert replay("oom").code == 4
    results = tmp_path / "results"
    (run_dir,) = (results / "runs").iterdir()
    document = json.loads(mbr_perf("history", "add", run_dir, "--results_dir", results, "--json").out)
    assert [(run["status"], run["added"]) for run in document["runs"]] == [("oom", True)]
    cases = json.loads(mbr_perf("history", "--results_dir", results, "--json").out)["cases"]
    assert [(case["last_outcome"], case["last_value"]) for case in cases] == [("oom", None)]
    shown = mbr_perf("history", cases[0]["case"], "--results_dir", results)
    assert shown.code == 0 and "oom, TFLOP/s/GPU -" in shown.out


def test_of_a_sweep_every_run_is_taken_in(mbr_perf, tmp_path):
    sweep = ROOT / "tests" / "data" / "sweeps" / "cpu_oom"
    answer = mbr_perf("history", "add", sweep, "--results_dir", tmp_path, "--json")
    runs = json.loads(answer.out)["runs"]
    assert sorted({run["status"] for run in runs}) == ["ok", "oom"]
    assert len(read_history(tmp_path)) == len(runs) == 3


def test_what_history_has_of_a_run_stays_when_it_is_added_again_and_another_of_its_id_is_refused(
    mbr_perf, replay, tmp_path
):
    assert replay("ok").code == 0
    results = tmp_path / "results"
    (run_dir,) = (results / "runs").iterdir()
    mbr_perf("history", "add", run_dir, "--results_dir", tmp_path / "elsewhere")
    (alone,) = read_history(tmp_path / "elsewhere")
    of_night = alone.model_copy(update={"night_id": "n", "outcome": "regression"})
    write_history(results, [of_night])
    assert mbr_perf("history", "add", run_dir, "--results_dir", results).out.startswith("0 of 1 run added.\n")
    assert read_history(results) == (of_night,)
    other = build_kept(run_id=run_dir.name)
    write_history(tmp_path / "third", [other])
    assert mbr_perf("history", "add", run_dir, "--results_dir", tmp_path / "third").code == 3
    assert read_history(tmp_path / "third") == (other,)


@pytest.mark.parametrize("command", [("history", "add"), ("golden", "promote", "--reason", "new")])
def test_all_runs_that_there_are_not_are_named_at_once(mbr_perf, tmp_path, command):
    answer = mbr_perf(*command, "nosuchrun", "norsuchone", "--results_dir", tmp_path)
    assert answer.code == 2
    assert "nosuchrun" in answer.err
    assert "norsuchone" in answer.err
