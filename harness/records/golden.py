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
    """Hardware and software of the golden; None where the source does not say.

    ``environment``: variables of the ranks that were the same in all runs. ``container``: their image; None beside an
    ``environment``: none was named. ``sm_clock_mhz``: the median SM clock of each run's slowest GPU over the window, and
    ``power_cap_share`` the time under the power cap of each run's most limited GPU (0 to 1); medians over the runs.
    """

    gpu: str
    device_name: str | None = None
    driver_version: str | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)
    environment: dict[str, str] | None = None
    container: str | None = None
    hostnames: tuple[str, ...] = ()
    sm_clock_mhz: float | None = None
    power_cap_share: float | None = None


class GoldenRecord(Frozen):
    """``results/golden/<gpu>/<slug>.json``. ``kind`` external: published elsewhere, with ``caveats``.

    ``window``: the steps [start, end) of ``max_steps`` that counted. ``overridden``: what a promotion is refused for and
    somebody accepted. ``retired_at`` and its companions: set once it lies in the retired folder, where nothing is
    compared with it.
    """

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
    max_steps: int | None = None
    window: tuple[int, int] | None = None
    night_id: str | None = None
    overridden: tuple[str, ...] = ()
    retired_at: str | None = None
    retired_by: str | None = None
    retired_reason: str | None = None
