"""The golden nearest to a planned setting."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.experiment.recompute import canonical_text, parse_recompute
from harness.predict.prediction import Prediction
from harness.predict.search import Plan
from harness.records.folders import golden_dir
from harness.records.golden import GoldenRecord, setting_differences, unstated_options
from harness.records.goldens import list_goldens
from harness.show.page import Block, Line, details
from harness.units import counted, format_percent


@dataclass(frozen=True)
class Nearest:
    """The golden with the fewest other settings (``differences``). Errors: predicted over measured, less 1."""

    name: str
    recompute: str
    differences: tuple[str, ...]
    peak_error: float | None
    throughput_error: float | None


# A measurement of another layout or batch says nothing about the error of a prediction.
_OF_LAYOUT = ("num_gpus", "parallelism.", "model.", "batch.")


def nearest_golden(plan: Plan, sources: Mapping[str, str], folder: Path | None = None) -> Nearest | None:
    """Return the golden of ``folder`` nearest to a predicted setting of the same job and layout, or None."""
    spec, found = plan.spec, []
    rows = {canonical_text(row.candidate.spec.recompute): row for row in plan.predicted}
    for path, golden in list_goldens(folder or golden_dir())[0].items():
        try:
            row = rows.get(canonical_text(parse_recompute(golden.recompute)))
        except ValueError:  # a setting of another version
            continue
        labels = (golden.recipe, golden.task, golden.gpu, golden.compute_dtype)
        if row is None or labels != (spec.recipe, spec.task, spec.gpu, spec.compute_dtype):
            continue
        own, prediction = row.candidate.spec, row.prediction
        assert prediction
        different = setting_differences(golden, own, own.fingerprint)
        if any(each.name.startswith(_OF_LAYOUT) for each in different):
            continue
        texts = [each.text for each in different]
        texts += [f"{name}: not stated by the golden" for name in unstated_options(golden, own, sources)]
        found.append(Nearest(path.stem, row.text, tuple(texts), *_errors(golden, prediction)))
    return min(found, key=lambda each: (len(each.differences), each.name), default=None)


def _errors(golden: GoldenRecord, prediction: Prediction) -> tuple[float | None, float | None]:
    """Return the errors of peak and throughput, relative; None for what either side lacks."""
    peak, speed = golden.metrics.get("peak_allocated_bytes"), golden.metrics.get("tflops_per_gpu")
    throughput = prediction.tflops_per_gpu / speed.value - 1 if speed and prediction.tflops_per_gpu else None
    # Published peaks are of later steps, as far as they tell: they are 16 % below the eager steps before a capture.
    stages, is_own = prediction.stages, golden.kind == "measured"
    planned = max(stage.whole_run for stage in stages) if is_own else prediction.peak_bytes
    return (planned / peak.value - 1 if peak else None), throughput


def nearest_blocks(golden: Nearest | None) -> list[Block]:
    """Return the nearest golden as a line, with its differences as details."""
    if golden is None:
        return [details("note", ["Nearest golden: none with this recipe, task, GPU, precision, layout and batch"])]
    apart = [f"{golden.name} differs: {'; '.join(golden.differences)}"] if golden.differences else []
    return [Line(nearest_text(golden), hang=2), details("note", apart)]


def nearest_text(golden: Nearest) -> str:
    """Name the nearest golden, and say how far the prediction of its setting is from it."""
    errors = (("peak", golden.peak_error), ("TFLOP/s/GPU", golden.throughput_error))
    texts = [f"predicted {what} {format_percent(error)}" for what, error in errors if error is not None]
    others = f"; {counted(len(golden.differences), 'other setting')}" if golden.differences else ""
    return f"Nearest golden: {golden.name}: {', '.join(texts) or 'no peak, no throughput'}{others}"
