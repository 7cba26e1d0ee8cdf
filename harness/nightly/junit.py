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
    """Return the document. Infrastructure faults are errors; inconclusive and expected cases are skipped."""
    root = Xml.Element("testsuites")
    about = {"name": verdict.plan.suite, "timestamp": verdict.plan.started_at[:19]}
    suite = Xml.SubElement(root, "testsuite", _clean(about))
    for case in verdict.cases:
        _add(suite, verdict.plan.suite, case)
    kinds = Counter(child.tag for child in suite.iterfind("testcase/*"))
    counts = {"tests": len(verdict.cases), "failures": kinds["failure"], "errors": kinds["error"]}
    seconds = _duration_s(run for case in verdict.cases for run in case.all_runs)
    root.attrib |= {name: str(number) for name, number in counts.items()} | {"time": f"{seconds:.3f}"}
    suite.attrib |= root.attrib | {"skipped": str(kinds["skipped"])}
    Xml.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{Xml.tostring(root, encoding="unicode")}\n'


def _problem(case: CaseVerdict) -> tuple[str, str]:
    """Return the element that says how the case ended, and its message; empty for a case that is well."""
    found = [finding_text(each) for each in case.findings if each.verdict.value == case.outcome]
    message = "\n".join(found) or case.planned.refused or case.reason or case.outcome
    if case.is_expected or case.outcome == "inconclusive":
        return "skipped", "\n".join(filter(None, (case.remark, message)))
    return ("error" if case.is_infrastructure else "failure", message) if case.exit_code else ("", "")


def _add(suite: Xml.Element, name: str, case: CaseVerdict) -> None:
    about = {"classname": name, "name": case.planned.name, "time": f"{_duration_s(case.all_runs):.3f}"}
    element, (tag, message) = Xml.SubElement(suite, "testcase", _clean(about)), _problem(case)
    if tag:
        Xml.SubElement(element, tag, _clean({"type": case.outcome, "message": one_line(message)})).text = _text(message)
    output = (case_title(case), *explanation(case), *to_copy(case))
    Xml.SubElement(element, "system-out").text = _text("\n".join(output))


def _duration_s(runs: Iterable[CaseRun]) -> float:
    return sum(run.record.provenance.duration_s for run in runs if run.record)


def _clean(attributes: dict[str, str]) -> dict[str, str]:
    return {name: _text(value) for name, value in attributes.items()}


def _text(text: str) -> str:
    return _FORBIDDEN.sub("", visible(text))
