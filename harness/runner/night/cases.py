"""Cases of a suite before anything runs: resolved, judged by the rules, predicted where that costs nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.errors import BadRequestError
from harness.launch.environment import Host
from harness.recipes.suite import SuiteCase
from harness.records.night import Case, ExpectedFailureRecord, PlannedCase, RefusedCase
from harness.runner.checking import check_request
from harness.runner.megatron_says import Question, megatron_findings, refusal, unasked_notes
from harness.runner.night.request import NightRequest
from harness.runner.one_sentence import in_one_sentence
from harness.runner.prediction import cached_prediction_of
from harness.spec.rules.finding import Finding
from harness.spec.software import Software


@dataclass(frozen=True)
class Draft:
    """A case as planned so far, the software that it was judged for, None where it could not be resolved, and its ranks' variables."""

    case: Case
    software: Software | None
    env: Mapping[str, str] | None = None

    def refused(self, why: str) -> "Draft":
        """The same, not to be run."""
        return replace(self, case=refused_case(self.case, why))


def drafted(cases: Sequence[SuiteCase], request: NightRequest, host: Host) -> tuple[Draft, ...]:
    """Every case. A case that a rule or its recipe forbids is refused; the others go on."""
    return tuple(_drafted(case, request, host) for case in cases)


def _drafted(case: SuiteCase, request: NightRequest, host: Host) -> Draft:
    try:
        checked = check_request(request.run_request(case.request), host, assume=None, ask_megatron=False)
    except BadRequestError as problem:
        return Draft(_unresolved(case, request, in_one_sentence(problem)), None)
    forbidden = _forbidden(checked.findings)
    known = dict(_unresolved(case, request, forbidden or "not judged")) | {
        "spec": checked.spec,
        "sources": checked.sources,
        "notes": checked.notes,
        "findings": checked.findings,
        "refused": forbidden,
    }
    return Draft(RefusedCase(**known) if forbidden else PlannedCase(**known), checked.software, checked.env)


def _unresolved(case: SuiteCase, request: NightRequest, refused: str) -> RefusedCase:
    expected = case.expected
    return RefusedCase(
        name=case.name,
        repeats=case.repeats,
        thresholds=case.thresholds,
        owner=case.owner,
        expected=ExpectedFailureRecord(
            outcome=expected.outcome, until=expected.until.isoformat(), reason=expected.reason
        )
        if expected
        else None,
        is_golden_required=case.is_golden_required,
        timeout_s=case.timeout_s if request.launch.timeout_s is None else request.launch.timeout_s,
        refused=refused,
    )


def refused_case(case: Case, why: str) -> RefusedCase:
    """The same case, not to be run."""
    return RefusedCase(**dict(case) | {"refused": why})


def _forbidden(findings: Sequence[Finding]) -> str:
    return "; ".join(f"{finding.id}: {finding.message} ({finding.fix})" for finding in findings if finding.blocks)


def asked_of_megatron(drafts: Sequence[Draft], host: Host) -> tuple[tuple[Draft, ...], tuple[str, ...]]:
    """Refused is also what the installed megatron-core will not take; beside it notes on what it did not answer.

    It is asked before GPUs are taken: CPU cases take none.
    """
    asked = {
        place: Question(one.case.spec, one.software, one.env)
        for place, one in enumerate(drafts)
        if isinstance(one.case, PlannedCase) and one.software and not one.case.spec.gpu_type.is_cpu
    }
    said = megatron_findings(asked, host)
    judged = (_with(said[place], one) if place in said else one for place, one in enumerate(drafts))
    return tuple(judged), unasked_notes(said.values())


def _with(said: Finding, one: Draft) -> Draft:
    if not said.blocks:
        return one
    found = one.case.model_copy(update={"findings": (*one.case.findings, said)})
    return replace(one, case=found).refused(refusal(said))


def foretold(one: Draft, host: Host) -> Draft:
    """With the prediction, where what was traced before suffices; else a run makes it."""
    if isinstance(one.case, RefusedCase) or one.software is None:
        return one
    kept = cached_prediction_of(one.case.spec, one.software, host).kept
    return replace(one, case=one.case.model_copy(update={"prediction": kept.prediction, "no_prediction": kept.reason}))
