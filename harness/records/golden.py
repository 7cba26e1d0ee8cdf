"""A golden value set: what a run of this fingerprint should measure, from how many runs, promoted by whom and why."""

from typing import Literal

from pydantic import Field

from harness.records.rank import SCHEMA_VERSION
from harness.spec.frozen import Frozen


class GoldenMetric(Frozen):
    """One value with the spread over the runs it comes from (relative standard deviation; None from one run)."""

    value: int | float = Field(gt=0)
    relative_spread: float | None = None
    note: str | None = None


class MeasuredOn(Frozen):
    """Hardware and software of the golden; None where the source does not say."""

    gpu: str
    device_name: str | None = None
    driver_version: str | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)


class GoldenRecord(Frozen):
    """``results/golden/<gpu>/<slug>.json``. ``kind`` external: published elsewhere, with ``caveats``."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["measured", "external"]
    recipe: str
    task: str
    gpu: str
    compute_dtype: str
    num_gpus: int
    recompute: str
    fingerprint: str | None = None
    spec: dict[str, object] = Field(default_factory=dict)
    metrics: dict[str, GoldenMetric]
    measured_on: MeasuredOn
    formula_version: str | None = None
    run_ids: tuple[str, ...] = ()
    num_runs: int = Field(ge=1)
    promoted_at: str
    promoted_by: str
    reason: str
    source: str | None = None
    caveats: tuple[str, ...] = ()
