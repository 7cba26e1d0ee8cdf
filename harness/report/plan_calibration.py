"""What a calibration fitted, and what it is worth: errors of every run before and after."""

from pathlib import Path

from rich.text import Text

from harness.records.calibration import Calibration, FittedConstant
from harness.report.console import Console
from harness.report.json import SCHEMA_VERSION, Document
from harness.report.printing import plain_table, print_hanging, print_lines, show
from harness.units import format_bytes


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
