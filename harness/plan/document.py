"""JSON of a plan, of its calibration and of exact traces."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from harness.planning.advice import advice, module_worths, safe_instead, why_none
from harness.planning.ledger import StageMemory
from harness.planning.prediction import ExactPeak, Prediction
from harness.planning.search import Plan, Row
from harness.records.trace import Calibration, FittedConstant
from harness.showing.json import SCHEMA_VERSION, Document
from harness.showing.printing import Console, plain_table, print_hanging, print_lines, show
from harness.units import format_bytes

_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "transient", "overhead", "total")


def plan_document(
    layouts: Sequence[tuple[str, Plan | None, str]],
    best: str | None,
    exact: Mapping[str, tuple[ExactPeak, ...]] | None = None,
) -> Document:
    """``mbr-perf plan --json``; ``layouts`` are name, plan and problem, ``best`` the name of the recommended one.

    ``exact``: stages by setting, where whole steps were traced.
    """
    plans = [(name, plan) for name, plan, _ in layouts if plan is not None]
    chosen = next((plan.recommended for name, plan in plans if name == best), None)
    lines = {text: None for _, plan in plans for text in plan.assumptions}
    return {
        "schema_version": SCHEMA_VERSION,
        "settings": [_row(row, name) for name, plan in plans for row in plan.rows],
        "recommended": chosen.text if chosen else None,
        "recommended_layout": best if chosen and best else None,
        "assumptions": list(lines),
        "layouts": [_layout(name, plan, problem) for name, plan, problem in layouts],
        "exact": [{"recompute": text, "stages": list(map(_exact, peaks))} for text, peaks in (exact or {}).items()],
    }


def _exact(peak: ExactPeak) -> Document:
    return {**asdict(peak), "problem": peak.problem or None, "error": peak.error}


def _layout(name: str, plan: Plan | None, problem: str) -> Document:
    if plan is None:
        return {"layout": name or None, "problem": problem}
    recommended = plan.recommended
    return {
        "layout": name or None,
        "problem": None,
        "spec": plan.spec.model_dump(mode="json"),
        "capacity_bytes": plan.limits.capacity_bytes,
        "margin": plan.limits.margin,
        "user_buffer_bytes": plan.limits.user_buffer_bytes,
        "max_overhead": plan.limits.max_overhead,
        "recommended": recommended.text if recommended else None,
        "not_recommended_because": why_none(plan) or None,
        "safe": plan.safe.text if plan.safe else None,
        "safe_instead": safe_instead(plan) or None,
        "inert_modules": plan.inert,
        "not_combined": list(plan.skipped),
        "modules_by_price": [asdict(worth) for worth in module_worths(plan)],
        "advice": [asdict(step) for step in advice(plan)],
    }


def _row(row: Row, layout: str) -> Document:
    return {
        "layout": layout or None,
        "recompute": row.text,
        "legal": row.candidate.is_legal,
        "rules": list(row.candidate.rules),
        "inert_modules": list(row.candidate.inert_modules),
        "reason": row.reason or None,
        **_figures(row.prediction),
        "recompute_overhead": row.overhead,
        "verdict": row.verdict,
        "verdict_is_certain": row.is_certain if row.verdict else None,
    }


def _figures(prediction: Prediction | None) -> Document:
    if prediction is None:
        keys = ("peak_bytes", "peak_range_bytes", "worst_stage", "peak", "step_time_s", "step_time_range_s",
                "tflops_per_gpu", "mfu", "hfu", "host_bound")  # fmt: skip
        return dict.fromkeys(keys) | {"stages": []}
    time, worst = prediction.time, prediction.worst
    return {
        "peak_bytes": worst.total,
        "peak_range_bytes": list(prediction.range_bytes),
        "worst_stage": worst.pp_rank,
        "peak": worst.peak,
        "stages": [_stage(stage) for stage in prediction.stages],
        "step_time_s": time.likely_s if time else None,
        "step_time_range_s": [time.low_s, time.high_s] if time else None,
        "tflops_per_gpu": prediction.tflops_per_gpu,
        "mfu": prediction.mfu,
        "hfu": prediction.hfu,
        "host_bound": time.host_bound if time else None,
        "model_flops_per_step": prediction.model_flops,
        "recompute_flops_per_step": prediction.recompute_flops,
    }


def _stage(stage: StageMemory) -> Document:
    parts: Document = {name: getattr(stage, name) for name in _PARTS}
    return {"pp_rank": stage.pp_rank, **parts, "peak": stage.peak, "peaks": dict(stage.peaks)}


def calibration_document(calibration: Calibration, path: Path) -> Document:
    """``mbr-perf plan --calibrate --json``."""
    return {"schema_version": SCHEMA_VERSION, "path": str(path), "calibration": calibration.model_dump(mode="json")}


def print_calibration(console: Console, calibration: Calibration, path: Path) -> None:
    """Constants, errors, runs that took no part, and where it is kept."""
    constants = plain_table("Constant", "Built in", "Fitted", "", right=("Built in", "Fitted"))
    for constant in calibration.constants:
        fitted = "-" if constant.value is None else _value(constant, constant.value)
        constants.add_row(
            constant.name, _value(constant, constant.built_in), fitted, Text(constant.reason, style="dim")
        )
    show(console, constants)
    console.print()
    columns = ("Peak before", "after", "left out", "Time before", "after", "left out")
    errors = plain_table("Run", "Recompute", *columns, right=columns)
    for run in calibration.runs:
        figures = (
            run.peak_before,
            run.peak_after,
            run.peak_left_out,
            run.time_before,
            run.time_after,
            run.time_left_out,
        )
        errors.add_row(run.run_id, run.recompute, *("-" if f is None else f"{f * 100:+.2f} %" for f in figures))
    show(console, errors)
    told = "Errors are predicted over measured, less one; left out: fitted to the other runs"
    print_hanging(console, Text(told, style="dim"), 2)
    print_lines(console, [f"No part in it: {run}: {why}" for run, why in calibration.refused.items()], style="yellow")
    console.print()
    used = f"Kept in {path}; `plan` and `run` for {calibration.gpu} use it where it is results/calibration/<gpu>.json"
    print_hanging(console, Text(used), 2)


def _value(constant: FittedConstant, value: float) -> str:
    return format_bytes(value) if constant.name.endswith("_bytes") else f"{value:.3f}"


def print_exact(console: Console, text: str, peaks: tuple[ExactPeak, ...]) -> None:
    """One setting: a row per pipeline stage, and why some have no exact peak."""
    console.print()
    console.print(Text(f"Whole step traced: {text}", style="bold"))
    columns = ("Stage", "Composed", "Exact", "Composed over exact", "Optimizer step")
    table = plain_table(*columns, right=columns)
    for peak in peaks:
        exact = "-" if peak.exact_bytes is None else format_bytes(peak.exact_bytes)
        error = "-" if peak.error is None else f"{peak.error * 100:+.3f} %"
        table.add_row(
            str(peak.pp_rank), format_bytes(peak.composed_bytes), exact, error, format_bytes(peak.optimizer_step_bytes)
        )
    show(console, table)
    for problem in dict.fromkeys(peak.problem for peak in peaks if peak.problem):
        stages = ", ".join(str(peak.pp_rank) for peak in peaks if peak.problem == problem)
        print_hanging(console, Text(f"Stage {stages}: {problem}", style="yellow"), 2)
