"""A night as JUnit XML, as Jenkins and its like read it."""

from xml.etree import ElementTree as Xml

import pytest

from harness.errors import ExitCode
from harness.nightly.junit import night_junit
from tests.nightly.conftest import changed

ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname", "id", "package"},
    "testcase": {"name", "classname", "time"},
    "property": {"name", "value"}, "failure": {"type", "message"}, "error": {"type", "message"},
    "skipped": {"type", "message"}, "properties": set(), "system-out": set(),
}  # fmt: skip
CHILDREN = {
    "testsuites": {"testsuite"}, "testsuite": {"properties", "testcase"}, "properties": {"property"},
    "testcase": {"failure", "error", "skipped", "system-out"},
}  # fmt: skip


@pytest.fixture(name="tree")
def _tree(night):
    return Xml.fromstring(night_junit(night))


def case_of(tree, case):
    return tree.find(f".//testcase[@classname='h100_nightly'][@name='{case}']")


def test_only_elements_and_attributes_of_the_common_schema_are_used(tree):
    for element in tree.iter():
        assert set(element.attrib) <= ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())


def test_the_counts_are_those_of_the_elements(tree):
    suite = tree.find("testsuite")

    assert int(suite.get("tests")) == len(tree.findall(".//testcase"))
    assert [int(suite.get(kind)) for kind in ("failures", "errors", "skipped")] == [
        len(tree.findall(f".//{kind}")) for kind in ("failure", "error", "skipped")
    ]
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("4", "1", "2")


@pytest.mark.parametrize(
    ("case", "element", "kind"),
    [
        ("llama3_70b_mlp", "failure", "regression"),
        ("llama3_8b_none", "failure", "oom"),
        ("llama3_8b_full", "skipped", "oom"),
        ("deepseek_v3", "failure", "failed"),
        ("llama3_70b_4nodes", "error", "failed"),
        ("qwen3_typo", "failure", "failed"),
        ("llama3_8b_throttled", "skipped", "inconclusive"),
    ],
)
def test_every_outcome_has_its_element(tree, case, element, kind):
    assert case_of(tree, case).find(element).get("type") == kind


def test_a_regression_names_the_metric_and_a_case_without_a_golden_its_reason(tree, make_night, night):
    assert "TFLOP/s/GPU" in case_of(tree, "llama3_70b_mlp").find("failure").text
    missing = changed(
        night.cases[0], findings=(), outcome="inconclusive", exit_code=ExitCode.INCONCLUSIVE, reason="no golden"
    )
    without = Xml.fromstring(night_junit(make_night(cases=(missing,))))
    assert case_of(without, "llama3_70b_none").find("skipped").get("message") == "no golden"


def test_an_improvement_is_a_failure_only_where_the_night_fails_on_it(tree, make_night, night):
    case = changed(night.cases[2], exit_code=ExitCode.IMPROVEMENT)
    failing = Xml.fromstring(night_junit(make_night(cases=(case,))))
    assert case_of(failing, "llama3_70b_core").find("failure").get("type") == "improvement"
    assert case_of(tree, "llama3_70b_core").find("failure") is None


def test_times_and_versions_are_reported(tree, night):
    properties = {p.get("name"): p.get("value") for p in tree.iter("property")}
    (mlp,) = (case for case in night.cases if case.planned.name == "llama3_70b_mlp")
    durations = [run.record.provenance.duration_s for run in mlp.runs]

    assert len(durations) == 7
    assert case_of(tree, "llama3_70b_mlp").get("time") == f"{sum(durations):.3f}"
    assert properties["megatron-core"] == "0.16.1"
    assert properties["torch"] == "2.9.1, 2.13.0+cpu"
    assert tree.find("testsuite").get("timestamp") == "2026-01-03T02:00:00"


def test_what_xml_cannot_hold_is_legible_or_left_out_and_the_rest_escaped(make_night, make_case):
    nasty = "a\x00b\x1b[31m\ud800<&\"'>]]>\ufffe c"
    case = make_case("x<y", [], outcome="failed", exit_code=ExitCode.RUN_FAILED, reason=nasty)

    document = night_junit(make_night(cases=(case,)))

    failure = Xml.fromstring(document.encode("utf-8")).find(".//failure")
    assert failure.text == r"a\x00b\x1b[31m\ud800<&" + "\"'>]]> c"
