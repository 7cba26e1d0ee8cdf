"""Every row of the rule table: one request that breaks it, and the nearest one that does not."""

import pytest

from harness.experiment.effective import settled_implementation
from harness.experiment.experiment import PeftSpec
from harness.experiment.rules.check import RULES, check
from harness.experiment.rules.rule import Rule, Situation
from harness.experiment.software import Software


def named(findings) -> set[tuple[str, str]]:
    return {(finding.id, finding.severity) for finding in findings}


def test_a_rule_fires_on_its_request_and_not_on_the_nearest_one_that_keeps_it(case, judge):
    broken = judge(case.kind, case.breaks)
    kept = judge(case.kind, case.breaks | case.keeps)
    assert (case.rule, case.severity) in named(broken)
    assert (case.rule, case.severity) not in named(kept)


def test_the_nearest_request_that_keeps_an_error_rule_is_legal(case, judge):
    if case.severity == "error":
        assert [f.message for f in judge(case.kind, case.breaks | case.keeps) if f.blocks] == []


def test_every_row_of_the_table_is_fired_by_a_case(all_cases, ask):
    fired: set[Rule] = set()
    for case in all_cases:
        spec, software, rank_env = ask(case.kind, case.breaks)
        situation = Situation(spec, software, settled_implementation(spec), rank_env)
        fired |= {row for row in RULES if row.judge(situation)}
    assert [(row.id, row.severity, row.since) for row in RULES if row not in fired] == []


def test_rows_with_one_id_differ_and_each_says_what_to_do_and_where_it_is_known_from():
    rows = [(row.id, row.severity, row.since, row.until, row.message) for row in RULES]
    assert len(rows) == len(set(rows))
    assert [row.id for row in RULES if not (row.message and row.fix and row.source)] == []


def test_a_value_of_the_shell_is_named_as_such(judge):
    name = "NVTE_FLASH_ATTN"

    def texts(**changes):
        found = judge("dense", {"kernels__attention_backend": "fused", **changes})
        return ["shell" in each.message for each in found if name in each.message]

    assert (texts(rank_env={name: "1"}), texts(**{f"env__{name}": "1"})) == ([True], [False])


@pytest.mark.parametrize("kind", ["dense", "moe", "deepseek", "cpu", "cpu moe"])
def test_the_plain_requests_are_without_findings(kind, judge):
    assert judge(kind, {}) == ()


def test_all_problems_are_reported_together_errors_first(judge):
    findings = judge("dense", {"layers": 9, "pp": 2, "gbs": 63, "recompute": "mlp,layernorm"})
    assert [f.id for f in findings if f.severity == "error"] == ["P08", "A06"]
    severities = [f.severity for f in findings]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert set(severities) == {"error", "warning"}


def test_a_forced_error_stays_visible_but_blocks_no_more(request_for):
    spec = request_for("dense", peft=PeftSpec())
    software = Software(megatron_core="0.16.1", transformer_engine="2.11")
    [finding] = check(spec, software, force=frozenset({"LORA01"}))
    assert (finding.severity, finding.overridden, finding.blocks) == ("error", True, False)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"layers": 12, "pp": 2}, " of 6, full:block"),
        ({"layers": 10, "pp": 2, "parallelism__num_layers_in_first_pipeline_stage": 4}, " of 2, full:block"),
    ],
)
def test_the_fix_of_uniform_recompute_names_what_divides_every_chunk(judge, changes, expected):
    findings = judge("dense", changes | {"recompute": "full:uniform:5"})
    assert expected in next(f.fix for f in findings if f.id == "T08")
