"""Settles the outcome of a case: which runs count, which faults of the machines ended them, and what was expected."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from harness.judge.gate import Outcome, Verdict, outcome_of, overall
from harness.nightly.values import CaseFinding, CaseRun
from harness.records.metrics import BY_NAME
from harness.records.night import ExpectedFailureRecord, NightRun
from harness.records.run import RunRecord
from harness.units import format_percent, grouped


@dataclass(frozen=True)
class InfrastructureFault:
    """One row. ``pattern``: a regular expression of its words; ``is_retried``: whether that helps.

    A fault that is not retried stays until you repair it, such as a full disk.
    """

    name: str
    pattern: str
    is_retried: bool


FAULTS: tuple[InfrastructureFault, ...] = (
    InfrastructureFault("GPU lost", r"GPU is lost|GPU_IS_LOST|fallen off the bus|NVML 15\b", False),
    InfrastructureFault("GPU memory error", r"uncorrectable ECC|ECC error|cudaErrorECCUncorrectable", False),
    InfrastructureFault("NVLink error", r"uncorrectable NVLink|cudaErrorNvlinkUncorrectable", False),
    InfrastructureFault("port taken", r"EADDRINUSE|address already in use", True),
    InfrastructureFault("disk full", r"disk full|No space left on device|ENOSPC", False),
    InfrastructureFault("node failed", r"\bNODE_FAIL\b", True),
    InfrastructureFault("job failed to start", r"\bBOOT_FAIL\b|\bLAUNCH_FAILED\b", True),
    InfrastructureFault("refused by Slurm", r"^Slurm refused the job: ", False),
    InfrastructureFault("Slurm not reached", r"^Slurm could not be reached: ", True),
    InfrastructureFault("preempted", r"\bPREEMPTED\b", True),
)

_NEVER_STATUS = ("ok", "oom", "interrupted")
_NEVER_KINDS = ("oom", "hang", "timeout", "non_finite_loss")
_NEVER_TEXT = re.compile(
    r"illegal memory access|Watchdog caught collective|collective operation timeout", re.IGNORECASE
)


def infrastructure_fault(record: RunRecord) -> InfrastructureFault | None:
    """Return the fault behind a failed run; None where none is named, or where the code under test may be the cause."""
    texts = _texts(record)
    kinds = {rank.failure.kind for rank in record.ranks if rank.failure}
    never = record.status in _NEVER_STATUS or kinds.intersection(_NEVER_KINDS)
    if never or any(_NEVER_TEXT.search(text) for text in texts):
        return None
    return fault_in(texts)


def fault_in(texts: Iterable[str]) -> InfrastructureFault | None:
    """Return the first fault that any of ``texts`` names. Also works without a record, from Slurm's state alone."""
    listed = tuple(texts)
    return next((row for row in FAULTS if any(re.search(row.pattern, text, re.IGNORECASE) for text in listed)), None)


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
    """Return the worst end among ``runs`` and its first run; None if no run failed or ran out of memory.

    A run without a record has failed, because its end is unknown. A run whose job a user cancelled has failed, too.
    """
    failed = [run for run in runs if run.record is None or run.cancelled or run.record.status == "failed"]
    oom = [run for run in runs if run.record is not None and run.record.status == "oom"]
    if failed:
        return "failed", next((run for run in failed if not run.infrastructure), failed[0])
    return ("oom", oom[0]) if oom else None


def figures_outcome(findings: Sequence[CaseFinding]) -> tuple[Outcome, str]:
    """Return the outcome of runs that ended well, and its finding as text; inconclusive if nothing was gated."""
    verdict = overall(findings)
    found = [finding for finding in findings if finding.verdict is verdict]
    return outcome_of(verdict), "" if verdict is Verdict.PASS else _findings_text(found) or "no metric was gated"


def expectation(
    expected: ExpectedFailureRecord | None, outcome: Outcome, today: date, *, ended_well: bool
) -> tuple[bool, str]:
    """Return whether the outcome was expected, and a remark where the suite's entry is out of date.

    ``ended_well``: the runs came to their end, so that a failure that was expected of them would have come.
    """
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
    return tuple(CaseRun(**vars(run), infrastructure=fault.name if fault else "") for run, fault in faults)
