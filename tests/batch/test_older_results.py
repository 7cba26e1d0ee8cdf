"""A run, a sweep, a night and a golden as commit 7492481 wrote them: read, judged, and resumed."""

import json
import shutil
from pathlib import Path

import pytest

from harness.judge.derive import derive
from harness.launch.environment import this_host
from harness.launch.machine import software_for
from harness.records.goldens import find_golden
from harness.records.night import read_night
from harness.records.store import read_record
from harness.records.sweep import read_sweep

WRITTEN = Path(__file__).parents[1] / "data" / "written_by_7492481"


@pytest.fixture(name="results")
def _results(tmp_path):
    """A copy that can be resumed here: its recorded runs are those in this repository, its software is this machine's."""
    results = shutil.copytree(WRITTEN, tmp_path / "results")
    for kind, mark in (("sweeps", "sweep"), ("nights", "night")):
        (path,) = (results / kind).glob(f"*/{mark}.json")
        text = path.read_text().replace("RECORDED", str(WRITTEN / kind / path.parent.name))
        plan = json.loads(text.replace("GOLDENS", str(results / "golden")))
        now = {gpu: software_for(gpu, this_host())[0].model_dump(mode="json") for gpu in ("cpu", "h100")}
        plan["software"] = now["cpu"] if kind == "sweeps" else {"h100": now["h100"]}
        path.write_text(json.dumps(plan))
    return results


def test_a_run_is_shown_with_what_it_measured(mbr_perf, results):
    run = results / "runs" / "run-1"
    shown = mbr_perf("results", "show", run, "--json")
    assert (shown.code, "run-1" in shown.out) == (0, True)
    assert derive(read_record(run / "record.json")).step_time_s.median == pytest.approx(0.06405, rel=1e-3)


def test_a_sweep_is_read_and_what_is_missing_of_it_is_run(mbr_perf, results):
    folder = results / "sweeps" / "sweep-1"
    before = read_sweep(folder)
    assert [(cell.planned.name, cell.fate, len(cell.runs)) for cell in before.cells] == [
        ("none", "run", 2), ("mlp", "run", 1), ("moe_act", "illegal", 0)
    ]  # fmt: skip
    assert before.num_due == 1
    answer = mbr_perf("sweep", "--resume", folder, "--results_dir", results, "--json")
    cells = json.loads(answer.out)["cells"]
    assert [(cell["name"], cell["status"]) for cell in cells] == [("none", "ok"), ("mlp", "ok"), ("moe_act", "illegal")]
    assert (answer.code, read_sweep(folder).num_due) == (0, 0)


def test_a_night_is_read_and_what_was_begun_in_it_is_run_again(mbr_perf, results):
    folder = results / "nights" / "night-1"
    dense, wrong = read_night(folder).cases
    assert [(run.number, run.record is not None) for run in dense.runs] == [(0, True), (1, False)]
    assert wrong.planned.refused
    answer = mbr_perf("nightly", "--resume", folder, "--results_dir", results)
    dense, _ = read_night(folder).cases
    assert [run.record.status for run in dense.runs] == ["ok", "ok"]
    report = json.loads((folder / "report" / "night.json").read_text())
    outcomes = {case["name"]: (case["outcome"], case["reason"]) for case in report["cases"]}
    assert outcomes["dense"][0] == "inconclusive"  # today a run is suspect whose ranks did not read their layers back
    assert outcomes["wrong"][0] == "failed"
    assert answer.code == 3  # for the refused case


def test_a_golden_is_found_for_the_case_that_it_was_measured_on(results):
    case = read_night(results / "nights" / "night-1").cases[0].planned
    assert find_golden(case.spec, results / "golden").golden.num_runs == 5
