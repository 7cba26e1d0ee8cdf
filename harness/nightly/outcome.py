"""Settles the outcome of a case: which runs count, which faults of the machines ended them, and what was expected."""

from collections.abc import Iterable, Sequence
from datetime import date

from harness.failures.entries import Entry, fault_in
from harness.judge.gate import Outcome, Verdict, outcome_of, overall
from harness.nightly.values import CaseFinding, CaseRun
from harness.records.metrics import BY_NAME
from harness.records.night import ExpectedFailureRecord, NightRun
from harness.records.run import RunRecord
from harness.units import first_line, format_percent, grouped

_NEVER_STATUS = ("ok", "oom", "interrupted")
_NEVER_KINDS = ("oom", "hang", "timeout", "non_finite_loss")


def infrastructure_fault(record: RunRecord) -> Entry | None:
    """Return the fault behind a failed run; None where none is named, or where the code under test may be the cause."""
    kinds = {rank.failure.kind for rank in record.ranks if rank.failure}
    is_of_program = record.status in _NEVER_STATUS or kinds.intersection(_NEVER_KINDS)
    return None if is_of_program else fault_in(_texts(record))


def _texts(record: RunRecord) -> tuple[str, ...]:
    """Return the recorded texts about the end of a run, without notes: these also mention harmless faults."""
    ranks = [rank.failure.message for rank in record.ranks if rank.failure]
    samplers = [error for node in record.nodes for error in (node.error, *(d.error for d in node.devices)) if error]
    return (*filter(None, [record.failure]), *ranks, *samplers)


def effective_runs(runs: Sequence[CaseRun]) -> tuple[CaseRun, ...]:
    """Return the runs that count. A retry replaces the last run before it that an infrastructure fault ended."""
    kept = list[CaseRun]()
    for run in sorted(runs, key=lambda run: run.number):
        if run.purpose == "retry":
            cured = next((earlier for earlier in reversed(kept) if earlier.infrastructure), None)
            kept = [earlier for earlier in kept if earlier is not cured]
        kept.append(run)
    return tuple(kept)


def bad_end(runs: Sequence[CaseRun]) -> tuple[Outcome, CaseRun] | None:
    """Return the worst end and its first run; None if all ended well. A run without a record has failed."""
    failed = [run for run in runs if run.record is None or run.cancelled or run.record.status == "failed"]
    oom = [run for run in runs if run.record is not None and run.record.status == "oom"]
    if failed:
        return "failed", next((run for run in failed if not run.infrastructure), failed[0])
    return ("oom", oom[0]) if oom else None


def how_it_ended(run: CaseRun) -> str:
    """Return ``run 2: infrastructure (port in use): it broke``."""
    failure = run.cancelled or (run.record.failure if run.record else "it left no record")
    named = f"infrastructure ({run.infrastructure}): " if run.infrastructure else ""
    return f"run {run.number}: {named}{first_line(failure, 'no failure recorded')}"


def figures_outcome(findings: Sequence[CaseFinding]) -> tuple[Outcome, str]:
    """Return the outcome of runs that ended well, and its finding as text; inconclusive if nothing was gated."""
    verdict = overall(findings)
    found = [finding for finding in findings if finding.verdict is verdict]
    return outcome_of(verdict), "" if verdict is Verdict.PASS else _findings_text(found) or "no metric was gated"


def expectation(
    expected: ExpectedFailureRecord | None, outcome: Outcome, today: date, *, ended_well: bool
) -> tuple[bool, str]:
    """Return whether the outcome was expected, and a remark where the suite's entry is out of date."""
    if expected is None:
        return False, ""
    came, until = expected.outcome == outcome, date.fromisoformat(expected.until)
    if not came and not ended_well:
        return False, ""
    if not came:
        return False, f"expected {expected.outcome} did not happen: remove the entry ({expected.reason})"
    if today > until:
        return False, f"the suite expected the outcome {outcome} only until {expected.until} ({expected.reason})"
    return True, f"expected until {expected.until}: {expected.reason}"


def _findings_text(findings: Sequence[CaseFinding]) -> str:
    changes = ("" if finding.change is None else f" {format_percent(finding.change)}" for finding in findings)
    metrics = grouped(
        (each.reason, f"{BY_NAME[each.metric].title}{change}") for each, change in zip(findings, changes, strict=True)
    )
    return "; ".join(f"{', '.join(names)}{f': {reason}' if reason else ''}" for reason, names in metrics.items())


def case_runs(runs: Iterable[NightRun]) -> tuple[CaseRun, ...]:
    """Return the runs with the named fault that ended each, if one did."""
    faults = ((run, infrastructure_fault(run.record) if run.record else None) for run in runs)
    return tuple(CaseRun(**vars(run), infrastructure=fault.title if fault else "") for run, fault in faults)
