"""A night as JSON."""

from dataclasses import replace

from tests.commands import json_of
from tests.nightly.conftest import changed


def test_the_keys_of_the_contract_are_there(night, tmp_path):
    document = json_of(changed(night, report=(tmp_path / "night.html",)))
    assert (document["outcome"], document["exit_code"]) == ("failed", 3)
    assert (document["night_id"], document["suite"]) == ("20260103T020000Z-h100_nightly-0a1b2c3d", "h100_nightly")
    assert document["report"] == [str(tmp_path / "night.html")]
    assert [case["outcome"] for case in document["cases"]] == [
        "pass", "regression", "improvement", "inconclusive", "failed", "oom", "oom", "failed", "failed",
    ]  # fmt: skip


def test_a_case_carries_its_evidence_its_runs_and_what_differs(night):
    cases = json_of(night)["cases"]
    case, lost = cases[1], cases[4]["runs"][0]
    speed = next(row for row in case["comparison"] if row["metric"] == "tflops_per_gpu")
    assert (speed["verdict"], speed["change"]) == ("regression", -0.034)
    assert speed["evidence"].items() >= {
        "spread": 0.0093, "num_nights": 19, "is_suspicious": True, "num_runs": 7,
        "num_golden_runs": 5,
    }.items()  # fmt: skip
    assert [run["purpose"] for run in case["runs"]] == ["repeat"] * 5 + ["confirm"] * 2
    assert case["runs"][0]["run_id"] == "20260103T020000Z-h100_nightly-0a1b2c3d.mlp.0"
    assert all(run["is_counted"] for run in case["runs"])
    assert case["drift"][0]["name"] == "torch"
    assert case["owner"] == "perf-team"
    assert (lost["is_counted"], lost["infrastructure"], lost["status"]) == (False, "node_failure", "failed")


def test_a_figure_that_is_no_number_is_null_and_costs_nothing_else(make_night, night):
    case = night.cases[1]
    broken = changed(case, findings=tuple(replace(f, current=float("nan")) for f in case.findings))
    rows = json_of(make_night(cases=(broken,)))["cases"][0]["comparison"]
    assert {row["current"] for row in rows} == {None}
    assert rows[0]["change"] == -0.034
