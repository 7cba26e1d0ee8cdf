"""What the command line says of a run beside its experiment: how to launch it, and how strictly to judge it."""

import math
from pathlib import Path
from typing import Self

from pydantic import model_validator

from harness.errors import BadRequestError, Problems
from harness.experiment.frozen import Frozen
from harness.records.launch import HANG_TIMEOUT_S, SAMPLE_INTERVAL_MS


class GateOptions(Frozen, allow_inf_nan=True):
    """How strictly to judge. Thresholds: fractions, None those of the GPU. BadRequestError for other thresholds."""

    golden_values_path: Path | None = None
    timing_threshold: float | None = None
    memory_threshold: float | None = None
    accept_differences: tuple[str, ...] = ()
    fail_on_improvement: bool = False
    require_golden: bool = False

    @model_validator(mode="after")
    def _thresholds_are_fractions(self) -> Self:
        given, problems = {"timing": self.timing_threshold, "memory": self.memory_threshold}, Problems()
        for name, value in given.items():
            if value is not None and not 0 <= value < 1:
                message = f"--{name}_threshold {value}: not a fraction from 0 to below 1"
                problems.add(message, "0.05 allows a change of 5 %")
        problems.raise_if_any()
        return self

    @property
    def names_one_golden(self) -> bool:
        """Return whether ``golden_values_path`` is a file. A file applies to at most one cell of a sweep."""
        return self.golden_values_path is not None and self.golden_values_path.is_file()

    @property
    def from_root(self) -> "GateOptions":
        path = self.golden_values_path
        return self.model_copy(update={"golden_values_path": path.absolute()}) if path else self


class LaunchSettings(Frozen, allow_inf_nan=True):
    """How to launch a run. ``pass_env`` holds names, never values. ``sample_interval_ms`` 0: no sampler."""

    launcher: str = "torchrun"
    replay_from: Path | None = None
    timeout_s: float | None = None
    hang_timeout_s: float = HANG_TIMEOUT_S
    sample_interval_ms: int = SAMPLE_INTERVAL_MS
    pass_env: tuple[str, ...] = ()

    @property
    def problems(self) -> list[BadRequestError]:
        limits = (("--timeout", self.timeout_s), ("--hang_timeout", self.hang_timeout_s))
        problems = [
            BadRequestError(f"{option} {value:g} must be above 0 and finite", remedy="give seconds above 0")
            for option, value in limits
            if value is not None and not 0 < value < math.inf
        ]
        if self.sample_interval_ms < 0:
            message = f"--sample_interval_ms {self.sample_interval_ms} must not be below 0"
            problems.append(BadRequestError(message, remedy="20 to 200 is sensible; 0 switches the sampler off"))
        return problems
