"""A night as JUnit XML, as Jenkins and its like read it."""

from xml.etree import ElementTree as Xml

from harness.errors import ExitCode
from harness.nightly.junit import night_junit

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


def test_only_elements_and_attributes_of_the_common_schema_are_used(night):
    for element in Xml.fromstring(night_junit(night)).iter():
        assert set(element.attrib) <= ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())


def test_what_xml_cannot_hold_is_legible_or_left_out_and_the_rest_escaped(make_night, make_case):
    nasty = "a\x00b\x1b[31m\ud800<&\"'>]]>\ufffe c"
    case = make_case("x<y", [], outcome="failed", exit_code=ExitCode.RUN_FAILED, reason=nasty)
    document = night_junit(make_night(cases=(case,)))
    failure = Xml.fromstring(document.encode("utf-8")).find(".//failure")
    assert failure.text == r"a\x00b\x1b[31m\ud800<&" + "\"'>]]> c"
