"""The planner's constants for a GPU type, fitted to runs or measured by themselves."""

from pydantic import ConfigDict, Field

from harness.experiment.frozen import Frozen
from harness.records.rank import SCHEMA_VERSION, SchemaVersion


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


class Calibration(Frozen):
    """``results/calibration/<gpu>.json``. ``time_spread``: worst error of left-out step times, None below three runs.

    ``refused``: runs that were not used, with the reason. ``planner``: fingerprint of the planner's sources.
    ``traced_with``: software versions of the tracer. ``versions``: software versions of the runs.
    """

    schema_version: SchemaVersion = SCHEMA_VERSION
    gpu: str
    constants: tuple[FittedConstant, ...]
    runs: tuple[RunErrors, ...]
    time_spread: float | None = None
    refused: dict[str, str] = Field(default_factory=dict)
    made_at: str
    planner: str
    traced_with: dict[str, str] = Field(default_factory=dict)
    device_names: tuple[str, ...] = ()
    versions: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class ProbedFacts(Frozen):
    """``constants``: by name of the planner's, shares of data-sheet rates or seconds. ``device``: its name."""

    model_config = ConfigDict(extra="ignore")
    device: str = ""
    constants: dict[str, float]


class Probe(Frozen):
    """``probe.json`` of scripts/gpu-check: constants that were measured by themselves on a GPU."""

    model_config = ConfigDict(extra="ignore")
    gpu: str
    facts: ProbedFacts
