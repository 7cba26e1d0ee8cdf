"""One entry of the result: what was run, what held, and the figures."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.analysis.derive import derive
from harness.analysis.peaks import Peak
from harness.records.run import RunRecord
from harness.runner.gpu_check.checks import Check
from harness.runner.gpu_check.checks import Verdict as CaseVerdict


@dataclass(frozen=True)
class Figures:
    """What one run measured: seconds, bytes, losses. None where there is no reading."""

    step_time_s: float | None = None
    tflops_per_gpu: float | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_device_bytes: int | None = None
    static_bytes: int | None = None
    loss_first: float | None = None
    loss_last: float | None = None


@dataclass(frozen=True)
class Case:
    """``name`` is the stem of its file; ``seconds`` the wall time of its runs. Without checks it was not run.

    ``record`` is that of the run whose figures these are. ``facts``: what else its file keeps, as plain values.
    ``document``: the file of an earlier sitting, which has no record here.
    """

    name: str
    recompute: str = "none"
    checks: tuple[Check, ...] = ()
    figures: Figures = Figures()
    seconds: float = 0.0
    record: RunRecord | None = field(default=None, repr=False)
    facts: dict[str, object] = field(default_factory=dict, repr=False)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def verdict(self) -> CaseVerdict:
        """That of a check that failed, else of one that was not run, passed, was skipped; not_run without checks."""
        verdicts = {check.verdict for check in self.checks}
        order: tuple[CaseVerdict, ...] = ("fail", "not_run", "pass", "skipped")
        return next((verdict for verdict in order if verdict in verdicts), "not_run")

    @property
    def fingerprint(self) -> str | None:
        """Of its run."""
        return self.record.fingerprint if self.record else self.document.get("fingerprint")

    @property
    def versions(self) -> dict[str, str | None]:
        """Of packages, as its run found them; empty without a run."""
        return self.record.provenance.versions if self.record else self.document.get("versions", {})

    @property
    def is_unknown(self) -> bool:
        """Whether nothing was found out."""
        return {check.verdict for check in self.checks} <= {"not_run"}

    @property
    def is_whole(self) -> bool:
        """Whether every check was carried out."""
        return bool(self.checks) and {check.verdict for check in self.checks} <= {"pass", "fail"}

    @property
    def failures(self) -> tuple[str, ...]:
        """What failed, in words."""
        return tuple(f"{check.name}: {check.found}" for check in self.checks if check.verdict == "fail")


@dataclass(frozen=True)
class Unfinished:
    """What the time did not allow: not started, or stopped at the deadline after ``seconds``."""

    seconds: float = 0.0

    def case(self, name: str, recompute: str = "none") -> Case:
        """The case that nothing is known of."""
        stopped = Check("result", "not_run", f"stopped at the deadline after {self.seconds:.0f} s")
        return Case(name, recompute, (stopped,) if self.seconds else (), seconds=self.seconds)


def case_name(*parts: str) -> str:
    """``dense.full-uniform-1``: letters, digits, ``.``, ``_`` and ``-`` only, so that any file system takes it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", ".".join(parts))


def figures_of(record: RunRecord | None) -> Figures:
    """The figures of a run; all absent for one that left no record."""
    if record is None:
        return Figures()
    metrics = derive(record)
    memory = record.ranks[0].memory if record.ranks else None
    return Figures(
        step_time_s=metrics.step_time_s.median if metrics.step_time_s else None,
        tflops_per_gpu=metrics.tflops_per_gpu.median if metrics.tflops_per_gpu else None,
        peak_allocated_bytes=_value(metrics.peak_allocated_bytes),
        peak_reserved_bytes=_value(metrics.peak_reserved_bytes),
        peak_device_bytes=_value(metrics.peak_device_bytes),
        static_bytes=memory.static_bytes if memory else None,
        loss_first=metrics.loss_first,
        loss_last=metrics.loss_last,
    )


def _value(peak: Peak | None) -> int | None:
    return peak.value if peak else None
