"""What gpu-check leaves behind: files for people, one table, an exit code."""

import json
import re

import pytest
from case import Case, Check, Unfinished
from evidence import cases_page, exit_code, write_case, write_summary
from ooms import survive_oom
from training import train_settings

from tests.commands import piped

PASSED = Case("dense.none", checks=(Check("trained", "pass", "exit 0, ok"),), figures={"step_time_s": 0.1})
FAILED = Case("dense.mlp", "mlp", (Check("trained", "pass", ""), Check("same_losses", "fail", "worst 0.5")))
SKIPPED = Case("mla", checks=(Check("trained", "skipped", "transformer-engine is not installed"),))
NOT_RUN = Case("moe.none")
STOPPED = Unfinished(21.4).case("dense.oom")
PARTLY = Case("dense.none", checks=(*PASSED.checks, Check("memory_in_order", "skipped", "needs a GPU")))


@pytest.mark.parametrize(
    ("cases", "code"),
    [
        ([PASSED], 0),
        ([PASSED, SKIPPED], 6),
        ([PARTLY], 6),
        ([PASSED, FAILED, NOT_RUN], 3),
        ([PASSED, NOT_RUN], 6),
        ([PASSED, STOPPED], 6),
        ([SKIPPED], 6),
        ([], 6),
    ],
)
def test_the_exit_code_is_that_of_the_worst_case(cases, code):
    assert int(exit_code(cases)) == code


@pytest.mark.slow
def test_a_case_is_kept_with_what_it_was_measured_on(machine, shape, tmp_path):
    runs = machine()
    for case in train_settings(runs, shape("dense"), ("mlp",)):
        write_case(tmp_path / "h200", runs.target, case)
    kept = json.loads((tmp_path / "h200" / "dense.mlp.json").read_text())
    assert {key: kept[key] for key in ("verdict", "recompute", "device", "driver")} == {
        "verdict": "pass", "recompute": "mlp", "device": "NVIDIA H200", "driver": "580.1",
    }  # fmt: skip
    assert {key: kept["run"][key] for key in ("modules", "versions", "status", "suspect")} == {
        "modules": {"mlp": 2}, "versions": {"torch": "2.11.0"}, "status": "ok", "suspect": [],
    }  # fmt: skip
    assert kept["figures"]["peak_device_bytes"] == 20 * 10**9
    assert re.fullmatch(r"[0-9a-f]{16}", kept["run"]["fingerprint"])


@pytest.mark.slow
def test_the_summary_holds_every_case_and_its_checks(machine, shape, tmp_path):
    runs = machine("oom_fits")
    cases = [*survive_oom(runs, shape("dense")), NOT_RUN]
    write_summary(tmp_path, runs.target, cases, 12.34)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["exit_code"], summary["seconds"], summary["gpu"]) == (3, 12.3, "h200")
    assert [(case["check"], case["verdict"]) for case in summary["cases"]] == [
        ("dense.oom", "fail"), ("dense.after_oom", "pass"), ("moe.none", "not_run"),
    ]  # fmt: skip
    assert summary["cases"][0]["checks"]["recorded_as_oom"] == "fail: exit 0, ok"


def test_the_table_tells_failures_and_what_was_left_out():
    text = "\n".join(piped(cases_page([PASSED, FAILED, SKIPPED, STOPPED, NOT_RUN])))
    for part in (
        "dense.mlp: same_losses failed: worst 0.5",
        "mla: trained skipped: transformer-engine ",
        "moe.none was not run",
        "dense.oom: ",
        " 21 s",
        "--resume",
    ):
        assert part in text
    assert "100.0 ms" in text
