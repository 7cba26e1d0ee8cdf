"""What `mbr-perf plan --calibrate` found: constants of the planner, fitted to measured runs of one GPU type."""

from pathlib import Path

from pydantic import Field

from harness.experiment.gpu import Frozen
from harness.records.rank import SCHEMA_VERSION
from harness.records.store import results_dir
from harness.records.strict_json import read_document


class FittedConstant(Frozen):
    """One constant. ``value`` None: the runs do not determine it, and ``reason`` says why; ``built_in`` then stays."""

    name: str
    built_in: float
    value: float | None
    bounds: tuple[float, float]
    reason: str = ""


class RunErrors(Frozen):
    """Predicted over measured less one, of one run: built in, fitted, and fitted without this run (three runs or more)."""

    run_id: str
    recompute: str
    fingerprint: str
    peak_before: float | None
    peak_after: float | None
    peak_left_out: float | None = None
    time_before: float | None = None
    time_after: float | None = None
    time_left_out: float | None = None


class Calibration(Frozen):
    """``results/calibration/<gpu>.json``. ``time_spread``: worst error of step times left out, None below three runs.

    ``refused``: runs that took no part, each with the reason. ``planner``: fingerprint of the sources that predicted, None
    in files of before it was kept; ``traced_with``: versions of what the tracer ran, while ``versions`` are the runs'.
    """

    schema_version: int = SCHEMA_VERSION
    gpu: str
    constants: tuple[FittedConstant, ...]
    runs: tuple[RunErrors, ...]
    time_spread: float | None = None
    refused: dict[str, str] = Field(default_factory=dict)
    made_at: str
    planner: str | None = None
    traced_with: dict[str, str] = Field(default_factory=dict)
    device_names: tuple[str, ...] = ()
    versions: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    def value_of(self, name: str) -> float | None:
        """The fitted value; None where the runs did not determine it."""
        return next((constant.value for constant in self.constants if constant.name == name), None)


def calibration_path(gpu: str, results: Path | None = None) -> Path:
    """Where the calibration of a GPU type is kept."""
    return results_dir(results) / "calibration" / f"{gpu}.json"


def find_calibration(gpu: str, results: Path | None = None) -> Calibration | None:
    """The kept one; BadRequestError for a file that cannot be read."""
    path = calibration_path(gpu, results)
    return read_document(path, Calibration) if path.exists() else None
