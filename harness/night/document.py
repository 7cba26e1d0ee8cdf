"""A night as JSON, its A/A included."""

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from harness.night.aa import AA_ALPHA, pairs_that_show
from harness.night.remarks import run_lines
from harness.night.values import AaFinding, AaVerdict, CaseFinding, CaseRun, CaseVerdict, NightVerdict
from harness.night.words import p_text
from harness.showing.figures import BY_NAME
from harness.showing.json import SCHEMA_VERSION, Document, metrics_document
from harness.units import format_percent, format_share

_WITHHELD = {"time": "no time", "memory": "no memory", "exact": "no counted work"}


def aa_lines(verdict: NightVerdict) -> tuple[str, ...]:
    """Whether it holds and how its labels compare; where it does not, what is not judged and where its runs are."""
    aa = verdict.aa
    if aa is None:
        return ()
    told = "; ".join(_aa_finding(finding) for finding in aa.findings if finding.p_value is not None)
    named = f"A/A of {aa.case}, {aa.num_pairs} pairs{', replayed: nothing was measured' if aa.is_replayed else ''}"
    if aa.holds:
        return (f"{named}: holds: {told}",)
    withheld = " and ".join(_WITHHELD[gate] for gate in aa.doubts)
    why = "; ".join(aa.doubts.values())
    return (
        f"{named}: {why}: {withheld} is judged tonight{f'. {told}' if told else ''}",
        *(_fix(finding) for finding in aa.findings if finding.is_blind),
        *(f"Runs of the A/A: {line}" for line in run_lines(aa.runs)),
    )


def aa_document(aa: AaVerdict | None) -> Document | None:
    """For JSON; null where there is no A/A."""
    if aa is None:
        return None
    return {
        "case": aa.case,
        "holds": aa.holds,
        "is_replayed": aa.is_replayed,
        "num_pairs": aa.num_pairs,
        "alpha": AA_ALPHA,
        "doubts": dict(aa.doubts),
        "comparison": [asdict(finding) for finding in aa.findings],
        "runs": [
            {
                "number": run.number,
                "label": run.reason,
                "run_dir": str(run.run_dir),
                "status": run.record.status if run.record else None,
                "failure": run.record.failure if run.record else None,
            }
            for run in aa.runs
        ],
    }


def _aa_finding(finding: AaFinding) -> str:
    """``TFLOP/s/GPU of A' against A -0.1 %, p 0.93; one run varies by 0.2 %; below 2 % nothing shows``."""
    if finding.change is None or finding.p_value is None or finding.noise is None or finding.visible is None:
        return ""
    title = BY_NAME[finding.metric].title
    change = f"{title} of A' against A {format_percent(finding.change)}, {p_text(finding.p_value)}"
    noise = f"one run varies by {format_share(finding.noise)}"
    return f"{change}; {noise}; below {format_share(max(finding.visible, finding.limit))} nothing shows"


def _fix(finding: AaFinding) -> str:
    """What lets an A/A tell that could not."""
    steadier = "a quieter machine, longer runs"
    if finding.noise is None or finding.threshold is None:
        return f"What would let the A/A tell: {steadier}"
    pairs = pairs_that_show(finding.threshold, finding.noise, AA_ALPHA)
    return f"What would let the A/A tell: {f'--aa_pairs {pairs}, ' if pairs else ''}{steadier}"


def night_document(verdict: NightVerdict, reports: Iterable[Path] = ()) -> Document:
    """``mbr-perf nightly --json``; ``reports`` are the files that were written."""
    plan = verdict.plan
    return {
        "schema_version": SCHEMA_VERSION,
        "night_id": plan.night_id,
        "night_dir": str(verdict.night_dir),
        "suite": plan.suite,
        "title": plan.title,
        "shard": plan.shard or None,
        "only": list(plan.only),
        "outcome": verdict.outcome,
        "exit_code": int(verdict.exit_code),
        "started_at": plan.started_at,
        "finished_at": verdict.finished_at,
        "num_runs_missing": verdict.num_due,
        "mbr_perf": plan.mbr_perf,
        "command": list(plan.command),
        "notes": list(plan.notes),
        "aa": _finite(aa_document(verdict.aa)),
        "cases": [case_document(case) for case in verdict.cases],
        "report": [str(path) for path in reports],
    }


def case_document(case: CaseVerdict) -> Document:
    """One case, also as a line of its own; a figure that is no finite number is null.

    ``speed`` is what the reports show and the gate compares: the mean step time over the runs, and the rates at it.
    ``metrics`` summarises the same runs by the median, which is what `golden promote` stores.
    """
    spec = case.planned.spec
    return {
        "name": case.planned.name,
        "outcome": case.outcome,
        "exit_code": int(case.exit_code),
        "reason": case.reason or None,
        "is_expected": case.is_expected,
        "is_infrastructure": case.is_infrastructure,
        "expected": case.planned.expected.model_dump(mode="json") if case.planned.expected else None,
        "remark": case.remark or None,
        "owner": case.planned.owner or None,
        "refused": case.planned.refused or None,
        "recipe": spec.recipe if spec else None,
        "gpu": spec.gpu if spec else None,
        "recompute": spec.recompute.text if spec else None,
        "fingerprint": spec.fingerprint if spec else None,
        "comparison": [_finding(finding) for finding in case.findings],
        "golden_path": case.golden_path,
        "drift": [asdict(difference) for difference in case.drift],
        "caveats": list(case.caveats),
        "metrics": _finite(metrics_document(case.metrics)) if case.metrics else None,
        "speed": _finite(asdict(case.speed)) if case.speed else None,
        "runs": [_run(run, case) for run in case.runs],
    }


def _finding(finding: CaseFinding) -> object:
    return _finite(asdict(finding) | {"verdict": finding.verdict.value, "reason": finding.reason or None})


def _run(run: CaseRun, case: CaseVerdict) -> Document:
    return {
        "run_id": run.record.run_id if run.record else None,
        "number": run.number,
        "purpose": run.purpose,
        "why": run.reason or None,
        "run_dir": str(run.run_dir),
        "status": run.record.status if run.record else None,
        "failure": run.record.failure if run.record else None,
        "infrastructure": run.infrastructure or None,
        "is_counted": run.record is not None and run.record.run_id in {record.run_id for record in case.counted},
        "duration_s": run.record.provenance.duration_s if run.record else None,
    }


def _finite(value: object) -> object:
    """Strict JSON has neither NaN nor infinity, and no figure may cost the whole document."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
