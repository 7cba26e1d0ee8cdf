"""Predicted and measured bytes by phase: what is judged, what is refused by which rule, what is left for another time."""

import json
from dataclasses import asdict, replace

import pytest
from case import Case, Check, in_rounds
from evidence import earlier_cases, write_case
from machine import code_of
from phases import Row, markdown
from planner import Group, _worth, compare, groups, reusable

from harness.predict.search import candidates
from tests.commands import refused

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
        (Row("mlp", problem="oom: rank 0"), "fail"),
        (Row("mlp", refused_by=("T08",)), "skipped"),
    ],
)
def test_a_phase_that_differs_by_more_than_its_tolerance_fails(found, verdict):
    assert found.check.verdict == verdict


def table(*rows):
    facts = {
        "shape": "dense",
        "compute_dtype": "bf16",
        "attention": "flash",
        "rows": [asdict(outcome) for outcome in rows],
    }
    return Case("dense.planner.bf16.flash", checks=tuple(outcome.check for outcome in rows), facts={"planner": facts})


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
        "* moe: refused by R05, T02",
        "* layernorm: oom: asking for 2 GiB",
        "* mlp: no time left",
        "* not judged, optimizer step: torch's own",
    ):
        assert line in text.splitlines()


def test_a_precision_that_a_rule_forbids_is_refused_by_its_name_and_nothing_is_started(machine, shape, tmp_path):
    runs = machine(rehearse=True)
    every = groups(runs, shape("dense"), "fp8_cs", ("fused", "unfused"))
    cases = filter(None, in_rounds(compare(runs, group, ("mlp",), parents=None) for group in every))
    assert {(case.name, case.verdict, case.checks[0].found) for case in cases} == {
        ("dense.planner.fp8_cs.flash", "skipped", "every setting is refused by CPU04"),
        ("dense.planner.fp8_cs.unfused", "skipped", "every setting is refused by CPU04"),
    }
    assert not (tmp_path / "runs").exists()


def test_both_ends_of_recompute_are_measured_first_and_combinations_last(machine, shape):
    settled = shape("dense").settle(machine().target)
    rows = candidates(settled.spec, settled.software, "transformer_engine").rows
    texts = [row.text for row in sorted(rows, key=_worth)]
    assert texts[:2] == ["none", "full:uniform:1"]
    assert "," in texts[-1]


@pytest.mark.parametrize(("asked", "names"), [(("fused",), ["flash"]), (("unfused",), ["unfused"])])
def test_the_planner_can_be_asked_for_one_attention(machine, shape, asked, names):
    assert [group.attention for group in groups(machine(rehearse=True), shape("dense"), "bf16", asked)] == names


def test_only_what_an_earlier_sitting_measured_wholly_and_as_predicted_is_not_measured_again(machine, shape, tmp_path):
    part, refused = Row("none", predicted=PREDICTED, measured={"weights": 100}), Row("moe", refused_by=("R05",))
    other = Row("layernorm", predicted=PREDICTED, measured={**PREDICTED, "weights": 2 * PREDICTED["weights"]})
    failed = Case("dense.none", checks=(Check("trained", "fail", "exit 3"),))
    for case in (table(row(), part, refused, other), failed):
        write_case(tmp_path, machine().target, case)
    kept, group = earlier_cases(tmp_path, machine().target).kept, Group(shape("dense"), "bf16", "flash")
    assert set(kept) == {group.case}
    assert reusable(machine(kept=kept), group) == {"mlp": PREDICTED}
    assert reusable(machine(), group) == {}


@pytest.mark.parametrize("text", ["{", '{"schema_version": 1, "check": "dense.none"}'])
def test_a_damaged_file_of_an_earlier_sitting_is_named(machine, tmp_path, text):
    target = machine().target
    whole = {**target.identity, **json.loads(text)} if text.endswith('none"}') else None
    (tmp_path / "dense.none.json").write_text(json.dumps(whole) if whole else text)
    refused(lambda: earlier_cases(tmp_path, target), "dense.none.json: ", "--out")


def test_what_another_device_or_other_code_measured_is_left_out_and_named(machine, tmp_path):
    here, target = machine(rehearse=True).target, machine().target
    checks = table(row()).checks
    write_case(tmp_path, here, Case("dense.none", checks=checks))
    write_case(tmp_path, replace(target, code="1a"), Case("dense.mlp", checks=checks))
    assert set(earlier_cases(tmp_path, here).kept) == {"dense.none"}
    there = earlier_cases(tmp_path, target)
    assert (there.cases, there.notes) == (
        {}, ["left out, other code: dense.mlp", "left out, other device or driver: dense.none"],
    )  # fmt: skip


def test_code_is_known_by_its_content(tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "dense.yaml").write_text("hidden_size: 4096\n")
    first = code_of(programs)
    assert code_of(programs) == first
    (programs / "dense.yaml").write_text("hidden_size: 8192\n")
    assert code_of(programs) != first
