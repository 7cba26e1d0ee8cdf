"""Cases of a suite before anything runs: checked, predicted where that costs nothing, and what the plan says of them."""

from collections.abc import Sequence

from harness.batch.drafts import Draft, drafted
from harness.launch.environment import Host
from harness.night.request import NightRequest
from harness.recipes.suite import SuiteCase
from harness.records.night import Case, ExpectedFailureRecord, PlannedCase, RefusedCase
from harness.run.predicting.prediction import KeptPrediction, cached_prediction_of

CaseDraft = Draft[SuiteCase]

_REPLAYED = "replayed: nothing is measured that a prediction could stand beside"


def draft_cases(cases: Sequence[SuiteCase], request: NightRequest, host: Host) -> tuple[CaseDraft, ...]:
    """Every case. A case that a rule or its recipe forbids is refused; the others go on."""
    return tuple(
        drafted(case, request.run_request(case.request), host, lambda one: f"{one.id}: {one.message} ({one.fix})")
        for case in cases
    )


def planned_case(draft: CaseDraft, request: NightRequest, host: Host) -> Case:
    """The case as the plan has it, with a prediction where what was traced before suffices; else a run makes it."""
    case, checked, expected = draft.asked, draft.checked, draft.asked.expected
    words = {
        "name": case.name,
        "repeats": case.repeats,
        "thresholds": case.thresholds,
        "owner": case.owner,
        "expected": ExpectedFailureRecord(
            outcome=expected.outcome, until=expected.until.isoformat(), reason=expected.reason
        )
        if expected
        else None,
        "is_golden_required": case.is_golden_required,
        "timeout_s": case.timeout_s if request.launch.timeout_s is None else request.launch.timeout_s,
    }
    if checked is not None:
        words |= {
            "spec": checked.spec,
            "sources": checked.sources,
            "notes": checked.notes,
            "findings": checked.findings,
        }
    if draft.problem or checked is None:
        return RefusedCase.model_validate(words | {"refused": draft.problem})
    if request.launch.launcher == "replay":
        kept = KeptPrediction(None, _REPLAYED)
    else:
        kept = cached_prediction_of(checked.spec, checked.software, host).kept
    return PlannedCase.model_validate(words | {"prediction": kept.prediction, "no_prediction": kept.reason})


def refused_case(case: Case, why: str) -> RefusedCase:
    """The same case, not to be run."""
    return RefusedCase(**dict(case) | {"refused": why})
