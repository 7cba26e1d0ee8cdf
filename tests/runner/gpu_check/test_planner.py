"""Predicted and measured bytes by phase: what is judged, what is refused by which rule, what is left for another time."""

import json
from dataclasses import asdict

import pytest

from harness.errors import BadRequestError
from harness.runner.gpu_check.case import Case
from harness.runner.gpu_check.checks import Check
from harness.runner.gpu_check.kept import kept_cases
from harness.runner.gpu_check.phases import TOLERANCES, Row
from harness.runner.gpu_check.planner import compare_groups, kept_measurements
from harness.runner.gpu_check.planner_table import markdown
from harness.runner.gpu_check.report import measured_on, write_case

PREDICTED = {
    "weights": 100,
    "gradients": 300,
    "optimizer": 900,
    "forward": 1500,
    "backward": 1600,
    "optimizer_step": 900,
}


def row(**measured):
    return Row("mlp", predicted=PREDICTED, measured={**PREDICTED, **measured})


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (row(), "pass"),
        (row(backward=1530), "pass"),
        (row(backward=1510), "fail"),
        (row(weights=102), "fail"),
        (Row("mlp", predicted=PREDICTED, measured={**PREDICTED, "weights": 200}, unjudged={"weights": "why"}), "pass"),
        (Row("mlp", predicted=PREDICTED), "not_run"),
        (Row("mlp", predicted=PREDICTED, measured={"weights": 100}), "not_run"),
        (Row("mlp", problem="oom: rank 0 ran out of memory"), "fail"),
        (Row("mlp", refused_by=("T08",)), "skipped"),
    ],
)
def test_a_phase_that_differs_by_more_than_its_tolerance_fails(found, verdict):
    assert found.check.verdict == verdict


def test_every_phase_has_a_tolerance():
    assert set(TOLERANCES) == set(PREDICTED)


def table(*rows):
    facts = {"shape": "dense", "compute_dtype": "bf16", "attention": "flash", "rows": [asdict(one) for one in rows]}
    return Case("dense.planner.bf16.flash", checks=tuple(one.check for one in rows), facts={"planner": facts})


def test_the_table_shows_prediction_measurement_difference_and_what_is_not_in_it(machine):
    full = {name: value * 10**7 for name, value in PREDICTED.items()}
    rows = (
        Row(
            "none",
            predicted=full,
            measured={**full, "backward": 17 * 10**9},
            unjudged={"optimizer_step": "torch's own"},
        ),
        Row("mlp", predicted=full),
        Row("moe", refused_by=("R05", "T02")),
        Row("layernorm", problem="oom: asking for\n2 GiB"),
    )
    text = markdown(machine().target, [table(*rows)])
    assert "| **none** | 1.000 / 1.000 +0.0 % | " in text
    assert "| 16.000 / 17.000 +6.2 % | (9.000 / 9.000 +0.0 %) |" in text
    assert "| mlp | 1.000 / - |" in text
    for line in (
        "* refused by R05, T02 (`mbr-perf rules show R05`): moe",
        "* layernorm: oom: asking for 2 GiB",
        "* not measured in the time there was: mlp",
        "* not judged, optimizer step: torch's own",
    ):
        assert line in text.splitlines()


def test_a_precision_that_a_rule_forbids_is_refused_by_its_name_and_nothing_is_started(machine, shape, tmp_path):
    cases = list(compare_groups(machine(rehearse=True), shape("dense"), ("fp8_cs",), ("mlp",), parents=None))
    assert [(case.name, case.verdict, case.checks[0].found) for case in cases] == [
        ("dense.planner.fp8_cs.flash", "skipped", "every setting is refused by CPU04"),
        ("dense.planner.fp8_cs.unfused", "skipped", "every setting is refused by CPU04"),
    ]
    assert not (tmp_path / "runs").exists()


def test_what_an_earlier_sitting_measured_wholly_is_not_measured_again(machine, tmp_path):
    rows = (row(), Row("none", predicted=PREDICTED, measured={"weights": 100}), Row("moe", refused_by=("R05",)))
    write_case(tmp_path, machine().target, table(*rows))
    kept = kept_cases(tmp_path, machine().target)["dense.planner.bf16.flash"]
    assert kept.verdict == "not_run"
    assert kept_measurements(kept) == {"mlp": PREDICTED}
    assert kept_measurements(None) == {}


def test_what_failed_in_an_earlier_sitting_is_done_again(machine, tmp_path):
    other = Row("moe", predicted=PREDICTED, measured={**PREDICTED, "weights": 2 * PREDICTED["weights"]})
    failed = Case("dense.none", checks=(Check("trained", "fail", "exit 3"),))
    for case in (table(row(), other), failed):
        write_case(tmp_path, machine().target, case)
    kept = kept_cases(tmp_path, machine().target)
    assert set(kept) == {"dense.planner.bf16.flash"}
    assert kept_measurements(kept["dense.planner.bf16.flash"]) == {"mlp": PREDICTED}


@pytest.mark.parametrize(
    "text",
    ["{", '{"schema_version": 1, "check": "dense.none", "check": 1}', '{"schema_version": 1, "check": "dense.none"}'],
)
def test_a_damaged_file_of_an_earlier_sitting_is_named(machine, tmp_path, text):
    target = machine().target
    whole = {**measured_on(target), **json.loads(text)} if text.endswith('none"}') else None
    (tmp_path / "dense.none.json").write_text(json.dumps(whole) if whole else text)
    with pytest.raises(BadRequestError, match=r"dense\.none\.json: cannot be read.*\n.*leave --resume out"):
        kept_cases(tmp_path, target)


def test_a_sitting_on_another_device_is_not_taken_over(machine, tmp_path):
    write_case(tmp_path, machine(rehearse=True).target, Case("dense.none", checks=table(row()).checks))
    assert set(kept_cases(tmp_path, machine(rehearse=True).target)) == {"dense.none"}
    assert kept_cases(tmp_path, machine().target) == {}
