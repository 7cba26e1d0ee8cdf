"""A night as JUnit XML: a test suite per night, a test case per case and gated metric, as Jenkins reads it."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree as Xml

from harness.errors import ExitCode
from harness.judge.gate import Verdict
from harness.nightly.remarks import aa_lines, story
from harness.nightly.values import CaseFinding, CaseRun, CaseVerdict, NightVerdict
from harness.nightly.words import SPEED, finding_text, one_line
from harness.records.metrics import BY_NAME
from harness.show.page import visible

RUN = "run"
"""Name of the test case for how the runs of a case ended."""

AA = "A/A"
"""Name of the test case for the night's own A/A."""

Element = Literal["failure", "error", "skipped"]

# Characters that XML 1.0 cannot hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class _Problem:
    """Why a test case is no pass; ``kind`` is the XML's ``type``."""

    element: Element
    kind: str
    message: str


def night_junit(verdict: NightVerdict) -> str:
    """Return the document. Failed, out of memory and regression are failures; infrastructure faults are errors.

    Inconclusive and expected ones are skipped.
    """
    suite = Xml.Element("testsuite", _clean({"name": verdict.plan.suite, "timestamp": verdict.plan.started_at[:19]}))
    _properties(suite, verdict)
    for case in verdict.cases:
        _case(suite, verdict.plan.suite, case)
    if verdict.aa:
        aa = None if verdict.aa.holds else _Problem("skipped", "inconclusive", "; ".join(verdict.aa.doubts.values()))
        run = _add(suite, f"{verdict.plan.suite}.{verdict.aa.case}", AA, aa, _duration_s(verdict.aa.runs))
        Xml.SubElement(run, "system-out").text = _text("\n".join(aa_lines(verdict)))
    _count(suite, verdict)
    root = Xml.Element("testsuites", {name: suite.attrib[name] for name in ("tests", "failures", "errors", "time")})
    root.append(suite)
    Xml.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{Xml.tostring(root, encoding="unicode")}\n'


def _case(suite: Xml.Element, night: str, case: CaseVerdict) -> None:
    name, told = f"{night}.{case.planned.name}", story(case)
    run = _add(suite, name, RUN, _run_problem(case), _duration_s(case.runs))
    Xml.SubElement(run, "system-out").text = _text("\n".join((told.title, *told.explanation, *told.to_copy)))
    for finding in case.findings:
        is_judged = BY_NAME[finding.metric].gate is not None and finding.verdict is not Verdict.NOT_GATED
        if is_judged or finding.metric == SPEED:
            _add(suite, name, finding.metric, _finding_problem(case, finding))


def _add(suite: Xml.Element, case: str, name: str, problem: _Problem | None, seconds: float = 0.0) -> Xml.Element:
    element = Xml.SubElement(suite, "testcase", _clean({"classname": case, "name": name, "time": f"{seconds:.3f}"}))
    if problem is not None:
        attributes = {"type": problem.kind, "message": one_line(problem.message)}
        Xml.SubElement(element, problem.element, _clean(attributes)).text = _text(problem.message)
    return element


def _run_problem(case: CaseVerdict) -> _Problem | None:
    """Say how the runs ended, and why the whole case has no verdict if no metric explains it."""
    reason = case.planned.refused or case.reason or case.outcome
    if case.outcome in ("failed", "oom"):
        return _unless_expected(case, "error" if case.is_infrastructure else "failure", case.outcome, reason)
    is_explained = any(finding.verdict is Verdict.INCONCLUSIVE for finding in case.findings)
    if case.outcome == "inconclusive" and not is_explained:
        return _unless_expected(case, "skipped", case.outcome, reason)
    return None


def _finding_problem(case: CaseVerdict, finding: CaseFinding) -> _Problem | None:
    message = finding_text(finding)
    match finding.verdict:
        case Verdict.REGRESSION:
            return _unless_expected(case, "failure", "regression", message)
        case Verdict.INCONCLUSIVE:
            return _Problem("skipped", "inconclusive", message)
        case Verdict.NOT_GATED:
            return _Problem("skipped", "not judged", message)
        case Verdict.IMPROVEMENT if case.exit_code is ExitCode.IMPROVEMENT:
            return _Problem("failure", "improvement", message)
        case _:
            return None


def _unless_expected(case: CaseVerdict, element: Element, kind: str, message: str) -> _Problem:
    if not case.is_expected or case.planned.expected is None:
        return _Problem(element, kind, message)
    expected = case.planned.expected
    return _Problem("skipped", kind, f"expected until {expected.until}: {expected.reason}\n{message}")


def _properties(suite: Xml.Element, verdict: NightVerdict) -> None:
    found = {"night_id": verdict.plan.night_id, "night_dir": str(verdict.night_dir), "mbr-perf": verdict.plan.mbr_perf}
    listed = Xml.SubElement(suite, "properties")
    for name, value in {**found, **_measured_with(verdict)}.items():
        Xml.SubElement(listed, "property", _clean({"name": name, "value": value}))


def _measured_with(verdict: NightVerdict) -> dict[str, str]:
    """Return versions, drivers, devices and hosts of all runs; lists each value if they differ."""
    found: dict[str, dict[str, None]] = {}
    for run in (run for case in verdict.cases for run in case.runs if run.record):
        assert run.record is not None
        where = run.record.provenance
        here = {"device": where.device_name or where.processor, "driver": where.driver_version, "host": where.hostname}
        for name, value in {**where.versions, **here}.items():
            if value:
                found.setdefault(name, {})[value] = None
    return {name: ", ".join(values) for name, values in found.items()}


def _count(suite: Xml.Element, verdict: NightVerdict) -> None:
    cases = suite.findall("testcase")
    kinds = Counter(child.tag for case in cases for child in case if child.tag != "system-out")
    counts = {"tests": len(cases), "failures": kinds["failure"], "errors": kinds["error"], "skipped": kinds["skipped"]}
    for name, number in counts.items():
        suite.set(name, str(number))
    runs = [run for case in verdict.cases for run in case.runs] + list(verdict.aa.runs if verdict.aa else ())
    suite.set("time", f"{_duration_s(runs):.3f}")


def _duration_s(runs: Iterable[CaseRun]) -> float:
    return sum(run.record.provenance.duration_s for run in runs if run.record)


def _clean(attributes: dict[str, str]) -> dict[str, str]:
    return {name: _text(value) for name, value in attributes.items()}


def _text(text: str) -> str:
    return _FORBIDDEN.sub("", visible(text))
