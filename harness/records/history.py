"""One run as history keeps it: a small file of figures and of what they were measured with, committed or kept per site."""

from typing import Literal

from pydantic import Field

from harness.records.batch import Purpose
from harness.records.rank import SCHEMA_VERSION
from harness.records.run import Status
from harness.spec.frozen import Frozen

LIMIT = "@"
"""Between the place of a case's golden and the memory limit of its runs, in the name of a case that has one."""

CaseOutcome = Literal["pass", "regression", "improvement", "inconclusive", "failed", "oom"]


class HistoryFigure(Frozen):
    """One metric of one run: what `analysis.metrics` reads of it; ``stdev`` over the ``n`` steps where it is one of steps."""

    value: float
    stdev: float | None = None
    n: int | None = None


class HistoryRecord(Frozen):
    """``results/history/<YYYYMM>/<run_id>.json``: written once by whoever ran it, so that many writers never meet.

    ``case``: ``<gpu>/<slug>``, the place of its golden, then its memory limit if it has one; runs of one case with another
    ``fingerprint`` are another series.
    ``is_start_known`` False: of an imported run whose log has no times, which stands at the time of its import.
    ``outcome``: of the case in that night, where the run was part of one. Units are those of the metric table.
    ``sm_clock_mhz``: the median SM clock of the slowest GPU over the window; ``power_cap_share``: the time under the power cap
    of the most limited one (0 to 1); None where no GPU was sampled, and in older files.
    ``voided``: figures, by name, of which that night could conclude nothing, with the reason: its own A/A did not hold.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    case: str
    fingerprint: str
    suite: str = ""
    suite_case: str = ""
    night_id: str = ""
    purpose: Purpose = "repeat"
    started_at: str
    is_start_known: bool = True
    duration_s: float
    status: Status
    outcome: CaseOutcome | None = None
    failure: str | None = None
    suspect: tuple[str, ...] = ()
    metrics: dict[str, HistoryFigure] = Field(default_factory=dict)
    voided: dict[str, str] = Field(default_factory=dict)
    formula_version: str
    sm_clock_mhz: float | None = None
    power_cap_share: float | None = None
    predicted_peak_bytes: int | None = None
    git_commit: str | None = None
    branch: str | None = None
    hostname: str
    device_name: str | None = None
    driver_version: str | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    container: str | None = None
    job_id: str | None = None
