"""The planner's constants for a GPU type, fitted to runs or measured by themselves."""

from pydantic import Field

from harness.experiment.frozen import Frozen
from harness.records.rank import Recorded

PROBED = "measured by itself"  # the reason of a constant that a probe measured


class FittedConstant(Frozen):
    """A constant. ``value`` None: the runs do not determine it (``reason``), and the planner uses ``built_in``."""

    name: str
    built_in: float
    value: float | None
    bounds: tuple[float, float]
    reason: str = ""


class RunErrors(Frozen):
    """Predicted / measured - 1 of a run: with built-in, fitted, and (from 3 runs on) fitted-without-it constants."""

    run_id: str
    recompute: str
    fingerprint: str
    peak_before: float | None
    peak_after: float | None
    peak_left_out: float | None = None
    time_before: float | None = None
    time_after: float | None = None
    time_left_out: float | None = None


class Calibration(Recorded):
    """``results/calibration/<gpu>.json``. ``time_spread``: worst error of left-out step times; None: few runs."""

    gpu: str
    constants: tuple[FittedConstant, ...]
    runs: tuple[RunErrors, ...]
    time_spread: float | None = None
    refused: dict[str, str] = Field(default_factory=dict)
    made_at: str
    planner: str
    traced_with: dict[str, str] = Field(default_factory=dict)
    versions: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class ProbedRow(Frozen):
    """An operation of constant ``of``. ``moved_bytes``: read and written. ``host_s``: until it is launched."""

    of: str
    what: str
    flops: float
    moved_bytes: float
    seconds: float
    host_s: float


class Probe(Recorded):
    """Constants that ``mbr-perf probe`` measured: shares of data-sheet rates, seconds or bytes, and their rows."""

    gpu: str
    device: str
    driver: str | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)
    clocks_mhz: tuple[int, int] | None = None
    constants: dict[str, float]
    rows: tuple[ProbedRow, ...] = ()
    made_at: str = ""
