"""A night as JUnit XML, as Jenkins reads it: a test case for each case of the suite."""

import re
from collections import Counter
from collections.abc import Iterable
from xml.etree import ElementTree as Xml

from harness.nightly.remarks import case_title, explanation, to_copy
from harness.nightly.values import CaseRun, CaseVerdict, NightVerdict
from harness.nightly.words import finding_text, one_line
from harness.show.page import visible

# Characters that XML 1.0 cannot hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def night_junit(verdict: NightVerdict) -> str:
    """Return the document. Failed, out of memory and regression are failures; infrastructure faults are errors.

    Inconclusive and expected ones are skipped. An improvement is a failure where the night fails on it.
    """
    plan = verdict.plan
    suite = Xml.Element("testsuite", _clean({"name": plan.suite, "timestamp": plan.started_at[:19]}))
    listed = Xml.SubElement(suite, "properties")
    about = {"night_id": plan.night_id, "night_dir": str(verdict.night_dir), "mbr-perf": plan.mbr_perf}
    for name, value in about.items():
        Xml.SubElement(listed, "property", _clean({"name": name, "value": value}))
    for case in verdict.cases:
        output = (case_title(case), *explanation(case), *to_copy(case))
        _add(suite, case.planned.name, case.all_runs, _problem(case), output)
    kinds = Counter(child.tag for child in suite.iterfind("testcase/*"))
    counts = {"tests": len(suite.findall("testcase")), "failures": kinds["failure"], "errors": kinds["error"]}
    seconds = _duration_s(run for case in verdict.cases for run in case.all_runs)
    totals = {name: str(number) for name, number in counts.items()} | {"time": f"{seconds:.3f}"}
    suite.attrib |= totals | {"skipped": str(kinds["skipped"])}
    root = Xml.Element("testsuites", totals)
    root.append(suite)
    Xml.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{Xml.tostring(root, encoding="unicode")}\n'


_Problem = tuple[str, str, str]  # the element, its type, and the message


def _problem(case: CaseVerdict) -> _Problem | None:
    found = [finding_text(each) for each in case.findings if each.verdict.value == case.outcome]
    message = "\n".join(found) or case.planned.refused or case.reason or case.outcome
    if case.is_expected and case.planned.expected is not None:
        expected = case.planned.expected
        return "skipped", case.outcome, f"expected until {expected.until}: {expected.reason}\n{message}"
    if case.outcome == "inconclusive":
        return "skipped", case.outcome, message
    return ("error" if case.is_infrastructure else "failure", case.outcome, message) if case.exit_code else None


def _add(
    suite: Xml.Element, name: str, runs: Iterable[CaseRun], problem: _Problem | None, output: Iterable[str]
) -> None:
    about = {"classname": str(suite.get("name")), "name": name, "time": f"{_duration_s(runs):.3f}"}
    element = Xml.SubElement(suite, "testcase", _clean(about))
    if problem is not None:
        tag, kind, message = problem
        Xml.SubElement(element, tag, _clean({"type": kind, "message": one_line(message)})).text = _text(message)
    Xml.SubElement(element, "system-out").text = _text("\n".join(output))


def _duration_s(runs: Iterable[CaseRun]) -> float:
    return sum(run.record.provenance.duration_s for run in runs if run.record)


def _clean(attributes: dict[str, str]) -> dict[str, str]:
    return {name: _text(value) for name, value in attributes.items()}


def _text(text: str) -> str:
    return _FORBIDDEN.sub("", visible(text))
