"""The range around a case's golden value in which a figure passes."""

from dataclasses import dataclass
from pathlib import Path

from harness.analysis.gate import Thresholds
from harness.analysis.history.series import Series
from harness.analysis.metrics import Metric
from harness.errors import BadRequestError
from harness.records.golden import GoldenRecord
from harness.records.goldens import golden_dir, read_golden
from harness.records.history import LIMIT
from harness.spec.gpu import GPUS


@dataclass(frozen=True)
class GoldenBand:
    """``low`` to ``high`` are within ``threshold`` of ``value`` on either side; ``path`` says which golden."""

    path: Path
    value: float
    threshold: float

    @property
    def low(self) -> float:
        """The least that is within."""
        return self.value * (1 - self.threshold)

    @property
    def high(self) -> float:
        """The most that is within."""
        return self.value * (1 + self.threshold)


def golden_band(series: Series, metric: Metric, folder: Path | None = None) -> tuple[GoldenBand | None, str]:
    """The band of the GPU's default threshold, or None with the reason why there is none to show."""
    path = golden_dir(folder) / f"{series.case.partition(LIMIT)[0]}.json"
    if metric.gate is None:
        return None, f"{metric.name} is not gated"
    if not path.is_file():
        return None, f"no golden: {path} is not there"
    try:
        golden = read_golden(path)
    except BadRequestError as error:
        return None, error.message
    gpu = GPUS.get(golden.gpu)
    reason = _mismatch(golden, series, metric) if gpu else f"is for {golden.gpu}, which is no GPU type known here"
    if reason or gpu is None:
        return None, f"no golden to hold it to: {path} {reason}"
    threshold = Thresholds(gpu.timing_threshold, gpu.memory_threshold).of(metric.gate)
    return GoldenBand(path, golden.metrics[metric.name].value, threshold), ""


def _mismatch(golden: GoldenRecord, series: Series, metric: Metric) -> str:
    if metric.name not in golden.metrics:
        return f"has no {metric.name}"
    if golden.fingerprint not in (None, series.fingerprint):
        return "is for other settings"
    formulas = {record.formula_version for night in series.nights[-1:] for record in night.records}
    if metric.gate == "time" and golden.formula_version not in (None, *formulas):
        return f"has throughput by another formula, {golden.formula_version}"
    return ""
