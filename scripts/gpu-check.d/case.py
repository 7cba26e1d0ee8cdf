"""One entry of the results: what was run, each check with its verdict, and the measured figures."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

from harness.judge.derive import derive
from harness.records.metrics import Peak
from harness.records.run import RunRecord

# skipped: this machine cannot carry the check out; not_run: a later sitting can.
Verdict = Literal["pass", "fail", "skipped", "not_run"]
NO_TIME = "no time left"
PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes")

Figures = Mapping[str, float | None]


@dataclass(frozen=True)
class Check:
    """One check. ``found`` describes the observation, or why there is none."""

    name: str
    verdict: Verdict
    found: str


def judged(name: str, *, holds: bool, found: str) -> Check:
    """Return a check that was carried out."""
    return Check(name, "pass" if holds else "fail", found)


@dataclass(frozen=True)
class Case:
    """``name`` is the stem of its file; ``seconds`` the wall time of its runs. A case without checks was not run.

    ``figures`` (seconds, bytes, losses) and ``run`` (fingerprint, status, versions, ...) come from its run's record.
    ``facts``: further plain values for its file.
    """

    name: str
    recompute: str = "none"
    checks: tuple[Check, ...] = ()
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def verdict(self) -> Verdict:
        """Return the worst of its checks; not_run without checks."""
        verdicts = {check.verdict for check in self.checks}
        order: tuple[Verdict, ...] = ("fail", "not_run", "pass", "skipped")
        return next((verdict for verdict in order if verdict in verdicts), "not_run")

    @property
    def is_unknown(self) -> bool:
        return {check.verdict for check in self.checks} <= {"not_run"}

    @property
    def is_whole(self) -> bool:
        return bool(self.checks) and {check.verdict for check in self.checks} <= {"pass", "fail"}


@dataclass(frozen=True)
class Unfinished:
    """A run that the time did not allow: not started, or stopped at the deadline after ``seconds``."""

    seconds: float = 0.0
    record: None = None

    def case(self, name: str, recompute: str = "none") -> Case:
        """Return the case about which nothing is known."""
        stopped = Check("result", "not_run", f"stopped at the deadline after {self.seconds:.0f} s")
        return Case(name, recompute, (stopped,) if self.seconds else (), self.seconds)


Part = Iterator[Case | None]  # None: the most telling cases are done


def in_rounds(parts: Iterable[Part]) -> Part:
    """Play every part up to its None, then yield None, then play each to its end."""
    begun = list(parts)
    for part in begun:
        yield from takewhile(lambda case: case is not None, part)
    yield None
    for part in begun:
        yield from part


def case_name(*parts: str) -> str:
    """Return ``dense.full-uniform-1``: letters, digits, ``.``, ``_`` and ``-`` only, which every file system accepts."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", ".".join(parts))


def facts_of(record: RunRecord) -> Mapping[str, Any]:
    """Return what a case keeps of its run beside figures."""
    return {
        **{name: getattr(record, name) for name in ("fingerprint", "status", "failure")}, "suspect": list(record.suspect),
        "notes": [*record.notes, *(note for rank in record.ranks for note in rank.notes)],
        "modules": record.effective.modules, "versions": record.provenance.versions,
        "measured_at": record.provenance.started_at,
    }  # fmt: skip


def figures(record: RunRecord) -> Figures:
    """Return seconds, bytes and losses."""
    metrics = derive(record)
    memory = record.ranks[0].memory if record.ranks else None
    peaks: dict[str, Peak | None] = {name: getattr(metrics, name) for name in PEAKS}
    return {
        "step_time_s": metrics.step_time_s.median if metrics.step_time_s else None,
        "tflops_per_gpu": metrics.tflops_per_gpu.median if metrics.tflops_per_gpu else None,
        **{name: peak.value if peak else None for name, peak in peaks.items()},
        "static_bytes": memory.static_bytes if memory else None, "loss_first": metrics.loss_first, "loss_last": metrics.loss_last,
    }  # fmt: skip
