"""Nights whose reports are kept below tests/data/terminal: every remark, reason and next step that a night can have."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from harness.errors import ExitCode
from harness.judge.gate import Verdict
from harness.nightly.values import CaseVerdict, NightVerdict, PairFinding, PairsVerdict, SharedChange
from harness.records.golden import Difference
from tests.nightly.conftest import (
    TORCH,
    build_case,
    build_night,
    build_runs,
    changed,
    improved,
    out_of_memory,
    passed,
    regressed,
)

DRIVER = Difference("driver_version", "550.54.15", "570.86", blocks=True)


def case_of(name: str, change: float, outcome: str = "pass", **changes: Any) -> CaseVerdict:
    """A case of two runs with that change of its throughput, red unless it passed."""
    codes = {"regression": ExitCode.REGRESSION, "inconclusive": ExitCode.INCONCLUSIVE}
    code = codes.get(outcome, ExitCode.OK)
    return build_case(name, build_runs([9.31, 9.36]), change=change, outcome=outcome, exit_code=code, **changes)


def with_findings(case: CaseVerdict, metric: str, **changes: Any) -> CaseVerdict:
    """The case with these changes of one finding."""
    return changed(case, findings=tuple(replace(f, **changes) if f.metric == metric else f for f in case.findings))


def paired(name: str, fault: str = "") -> CaseVerdict:
    """A regression in two pairs of builds, or pairs that decide nothing."""
    case = regressed()
    runs = tuple(
        replace(run, purpose="pair", reason=label) for run, label in zip(case.runs, ("old", "new"), strict=False)
    )
    findings = tuple(
        PairFinding(**vars(f) | {"evidence": None}, p_value=p_value, margin=p_value and 0.011)
        for f, p_value in zip(case.findings, (2e-5, None, None, None, None), strict=False)
    )
    pairs = PairsVerdict("/old/env", 2, fault, () if fault else findings, runs)
    return changed(case, planned=case.planned.model_copy(update={"name": name}), pairs=pairs)


def red() -> NightVerdict:
    """What a golden cannot judge, what pairs decide, and what is worse in memory or in counts."""
    larger = with_findings(case_of("larger", -0.004), "peak_device_bytes", change=0.09, verdict=Verdict.REGRESSION)
    unjudged = {"verdict": Verdict.INCONCLUSIVE, "reason": DRIVER.text, "evidence": None}
    driver = case_of(
        "driver", -0.06, "inconclusive", drift=(DRIVER, replace(TORCH, accepted=True)), caveats=("no steps",)
    )
    for metric in ("tflops_per_gpu", "peak_allocated_bytes"):
        driver = with_findings(driver, metric, **unjudged)
    new = case_of("new", 0.0, "inconclusive", golden_path=None, reason="no golden")
    good, bad = regressed().counted[0], out_of_memory().runs[0].record
    mixed = build_case("mixed", [good, bad, good], outcome="oom", exit_code=ExitCode.OUT_OF_MEMORY)
    cases = (
        changed(larger, outcome="regression", exit_code=ExitCode.REGRESSION),
        paired("paired"),
        paired("broken", "the comparison with the old build failed: run 4: it broke"),
        driver,
        changed(new, metrics=replace(new.metrics, problems={"step_time_s": "2 of 4 steps are missing"})),
        case_of(
            "damaged", 0.0, "inconclusive", golden_path=None, is_golden_damaged=True, reason="golden.json: no JSON"
        ),
        mixed,
        changed(improved(), exit_code=ExitCode.IMPROVEMENT, remark="expected oom did not happen: remove the entry"),
    )
    return build_night(
        cases=cases, plan={"started_at": "2026-01-02T23:30:00Z", "only": ("a*", "b"), "golden_dir": "my goldens"}
    )


def calm() -> NightVerdict:
    """No red case, and what must be said all the same: far changes, wide noise, no throughput in a golden."""
    noisy = case_of("noisy", 0.096)
    (speed,) = (f for f in noisy.findings if f.metric == "tflops_per_gpu")
    wide = {"threshold": 0.0912, "allowed_by": "3 spreads", "evidence": replace(speed.evidence, num_nights=0)}
    noisy = with_findings(noisy, speed.metric, verdict=Verdict.IMPROVEMENT, **wide)
    lacking = with_findings(passed(), speed.metric, golden=None, change=None, verdict=Verdict.NOT_GATED, evidence=None)
    return build_night(
        cases=(noisy, lacking, passed(), case_of("at_the_limit", 0.05)),
        num_due=3,
        exit_code=ExitCode.INTERRUPTED,
        plan={"notes": ("2 of 3 cases",)},
    )


def shared() -> NightVerdict:
    """Most cases are slower alike."""
    cases = tuple(case_of(name, -0.051, "regression") for name in "abcdefg")
    return build_night(cases=(*cases, passed()), shared=SharedChange(-0.051, 7, 8, is_doubt=True))


NIGHTS: Mapping[str, Callable[[], NightVerdict]] = {"red": red, "calm": calm, "shared": shared, "every": build_night}
