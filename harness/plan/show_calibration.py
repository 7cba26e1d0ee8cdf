"""Shows what `plan --calibrate` fitted."""

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.records.calibration import Calibration, FittedConstant, RunErrors
from harness.show.json import Document
from harness.show.page import GAP, Column, Line, Page, Span, Table, Words, listing, table, tabled
from harness.units import format_bytes


class CalibrationDocument(Document):
    """``mbr-perf plan --calibrate --json``."""

    path: Path
    calibration: Calibration


def calibration_page(calibration: Calibration, path: Path) -> Page:
    """Constants, errors, ignored runs, and the file of the calibration."""
    built_in = ("Built in", "Fitted")
    constants = table(
        ("Constant", *built_in, Column("", long=True)),
        [
            (constant.name, *(_value(constant, value) for value in (constant.built_in, constant.value)),
             Span(constant.reason, "dim"))
            for constant in calibration.constants
        ],
        right=built_in,
    )  # fmt: skip
    return Page((
        constants,
        GAP,
        _errors(calibration.runs),
        Line("Error: predicted / measured - 1. Left out: predicted with a fit to the other runs", "dim", hang=2),
        listing((f"Ignored: {run}: {why}" for run, why in calibration.refused.items()), style="doubt"),
        GAP,
        Line(f"Kept in {path}; `plan` and `run` use results/calibration/{calibration.gpu}.json", hang=2),
    ))  # fmt: skip


def _errors(runs: Sequence[RunErrors]) -> Table:
    """Return both errors of each run, before and after, and of a fit without the run."""

    def read(name: str) -> Callable[[RunErrors], Words]:
        return lambda run: "-" if getattr(run, name) is None else f"{getattr(run, name) * 100:+.2f} %"

    errors = [
        (
            Column(f"{what.capitalize()} {when}".replace("_", " "), right=True, drop=drop, lost=True),
            read(f"{what}_{when}"),
        )
        for drop, what in enumerate(("peak", "time"))
        for when in ("before", "after", "left_out")
    ]
    return tabled(
        runs,
        [
            (Column("Run", whole=True), lambda run: run.run_id),
            (Column("Recompute"), lambda run: run.recompute),
            *errors,
        ],
    )


def _value(constant: FittedConstant, value: float | None) -> str:
    if value is None:
        return "-"
    return format_bytes(value) if constant.name.endswith("_bytes") else f"{value:.3g}"
