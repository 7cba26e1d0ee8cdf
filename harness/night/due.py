"""Works out which runs of a night are due, retries after faults of machines among them."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from harness.batch.plan import DueRun
from harness.night.outcome import effective_runs
from harness.night.values import CaseRun
from harness.records.night import NightPlan, PlannedCase, RefusedCase, aa_label
from harness.records.nights import NightCase, NightData, NightRun
from harness.records.run import RunRecord


@dataclass(frozen=True)
class InfrastructureFault:
    """One row. ``pattern``: a regular expression for the words by which it is known; ``is_retried``: whether that helps.

    A fault that is not retried stays until somebody acts, like a full disk.
    """

    name: str
    pattern: str
    is_retried: bool
    remedy: str


FAULTS: tuple[InfrastructureFault, ...] = (
    InfrastructureFault("GPU lost", r"GPU is lost|GPU_IS_LOST|fallen off the bus|NVML 15\b", False,
                        "drain the node; the GPU needs a reset or a reboot"),
    InfrastructureFault("GPU memory error", r"uncorrectable ECC|ECC error|cudaErrorECCUncorrectable", False,
                        "drain the node and look at nvidia-smi -q -d ECC"),
    InfrastructureFault("NVLink error", r"uncorrectable NVLink|cudaErrorNvlinkUncorrectable", False,
                        "drain the node and look at nvidia-smi nvlink -e"),
    InfrastructureFault("port taken", r"EADDRINUSE|address already in use", True,
                        "another run took the port between choosing and using it"),
    InfrastructureFault("disk full", r"disk full|No space left on device|ENOSPC", False,
                        "free some space where results are written"),
    InfrastructureFault("node failed", r"\bNODE_FAIL\b", True, "Slurm lost the node; another may be given"),
    InfrastructureFault("job failed to start", r"\bBOOT_FAIL\b|\bLAUNCH_FAILED\b", True,
                        "Slurm could not start the job on its nodes"),
    InfrastructureFault("refused by Slurm", r"^Slurm refused the job: ", False,
                        "ask for what the cluster gives: its own words say what it does not"),
    InfrastructureFault("Slurm not reached", r"^Slurm could not be reached: ", True,
                        "its controller did not answer; sinfo tells whether it does now"),
    InfrastructureFault("preempted", r"\bPREEMPTED\b", True, "another job was given the nodes"),
)  # fmt: skip

_NEVER_STATUS = ("ok", "oom", "interrupted")
_NEVER_KINDS = ("oom", "hang", "timeout", "non_finite_loss")
_NEVER_TEXT = re.compile(
    r"illegal memory access|Watchdog caught collective|collective operation timeout", re.IGNORECASE
)


def infrastructure_fault(record: RunRecord) -> InfrastructureFault | None:
    """The fault behind a failed run; None where none is named, or where the code under test may be the cause."""
    texts = _texts(record)
    kinds = {rank.failure.kind for rank in record.ranks if rank.failure}
    never = record.status in _NEVER_STATUS or kinds.intersection(_NEVER_KINDS)
    if never or any(_NEVER_TEXT.search(text) for text in texts):
        return None
    return fault_in(texts)


def fault_in(texts: Iterable[str]) -> InfrastructureFault | None:
    """The first row that any of ``texts`` names: also for a run without a record, of which only Slurm's state is known."""
    listed = tuple(texts)
    return next((row for row in FAULTS if any(re.search(row.pattern, one, re.IGNORECASE) for one in listed)), None)


def _texts(record: RunRecord) -> tuple[str, ...]:
    """What was written down about the end. Notes are left out: they also tell of faults that were got over."""
    ranks = [rank.failure.message for rank in record.ranks if rank.failure]
    samplers = [error for node in record.nodes for error in (node.error, *(d.error for d in node.devices)) if error]
    return (*filter(None, [record.failure]), *ranks, *samplers)


DueCase = DueRun[PlannedCase]
Suspicion = Callable[[NightCase], str]
"""Why a case whose repeats are done looks like a regression; empty where it does not."""


def due_round(data: NightData, suspicion: Suspicion) -> tuple[DueCase, ...]:
    """The next round; empty when every case has what it needs. Interleaved: one run of every case, then a second one."""
    each = [(*_aa(data.plan, case), *due_runs(data.plan, case, suspicion)) for case in data.cases]
    return tuple(due for layer in zip_longest(*each) for due in layer if due is not None)


def due_runs(plan: NightPlan, case: NightCase, suspicion: Suspicion) -> tuple[DueCase, ...]:
    """Of one case: what was begun and not committed, and missing repeats; or a retry; or runs to confirm; or nothing.

    A run that failed ends the case, unless a named fault of the machines ended it and a retry is left.
    """
    planned = case.planned
    if isinstance(planned, RefusedCase):
        return ()
    bad = [run for run in effective_runs(case_runs(case)) if run.record and run.record.status in ("failed", "oom")]
    if bad:
        return tuple(_retries(plan, planned, case, bad))
    missing = (*_begun(planned, case), *_repeats(planned, case))
    if missing and not any(run.purpose == "confirm" for run in case.runs):
        return missing
    return (*missing, *_confirmations(plan, planned, case, suspicion))


def case_runs(case: NightCase) -> tuple[CaseRun, ...]:
    """The runs as the judge takes them, each with the named fault that ended it, if one did."""
    return tuple(_case_run(run) for run in case.runs)


def aa_runs(case: NightCase) -> tuple[CaseRun, ...]:
    """Those of the night's A/A likewise."""
    return tuple(_case_run(run) for run in case.aa_runs)


def _aa(plan: NightPlan, case: NightCase) -> Iterator[DueCase]:
    """A/A runs that are not there, in their order; none any more once one ended badly: there is no other in its place."""
    ended = {run.number: run.record.status for run in case.aa_runs if run.record}
    planned = case.planned
    if isinstance(planned, RefusedCase) or {"failed", "oom"} & set(ended.values()):
        return
    for place, number in enumerate(plan.aa_numbers(planned)):
        if ended.get(number, "interrupted") == "interrupted":
            yield DueRun(planned, number, "aa", aa_label(place))


def _case_run(run: NightRun) -> CaseRun:
    fault = infrastructure_fault(run.record) if run.record else None
    named = fault.name if fault else ""
    return CaseRun(run.number, run.purpose, run.reason, run.run_dir, run.record, named, run.cancelled)


def _begun(planned: PlannedCase, case: NightCase) -> Iterator[DueCase]:
    for run in case.runs:
        if run.record is None or run.record.status == "interrupted":
            why = f"again, the last time ended by: {run.cancelled}" if run.cancelled else ""
            yield DueRun(planned, run.number, run.purpose, "; ".join(filter(None, (run.reason, why))))


def _repeats(planned: PlannedCase, case: NightCase) -> Iterator[DueCase]:
    begun = {run.number for run in case.runs}
    for number in range(planned.repeats):
        if number not in begun:
            yield DueRun(planned, number, "repeat")


def _retries(plan: NightPlan, planned: PlannedCase, case: NightCase, bad: Sequence[CaseRun]) -> Iterator[DueCase]:
    """One retry at a time; none where any of the bad runs is not to be tried again."""
    left = plan.retries - sum(run.purpose == "retry" for run in case.runs)
    faults = [infrastructure_fault(run.record) if run.record else None for run in bad]
    if left < 1 or not all(fault and fault.is_retried for fault in faults):
        return
    yield DueRun(planned, _next_number(plan, case), "retry", f"run {bad[0].number} ended by: {bad[0].infrastructure}")


def _confirmations(plan: NightPlan, planned: PlannedCase, case: NightCase, suspicion: Suspicion) -> Iterator[DueCase]:
    """Once one was begun, all are made: what it measured must not decide whether the others are."""
    begun = [run for run in case.runs if run.purpose == "confirm"]
    left = plan.confirm - len(begun)
    reason = begun[0].reason if begun else suspicion(case) if left > 0 else ""
    if reason:
        first = _next_number(plan, case)
        yield from (DueRun(planned, first + offset, "confirm", reason) for offset in range(left))


def _next_number(plan: NightPlan, case: NightCase) -> int:
    """After those that are the repeats' and the A/A's."""
    return max([plan.aa_numbers(case.planned).stop, *(run.number + 1 for run in case.runs)])
