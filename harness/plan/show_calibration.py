"""Shows what `plan --calibrate` fitted."""

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.records.calibration import Calibration, FittedConstant, RunErrors
from harness.records.folders import calibration_path
from harness.show.json import Document
from harness.show.page import GAP, Column, Line, Page, Span, Table, Words, listing, table, tabled
from harness.units import format_bytes


class CalibrationDocument(Document):
    """``mbr-perf plan --calibrate --json``."""

    path: Path
    calibration: Calibration


# A rate of a GPU by itself lies within this factor of what steps of its type give.
_FAR = 1.25


def calibration_page(calibration: Calibration, path: Path) -> Page:
    """What is measured and who uses it, constants, errors, ignored runs."""
    built_in, found = ("Built in", "Fitted"), [each for each in calibration.constants if each.value is not None]
    constants = table(
        ("Constant", *built_in, Column("", long=True)),
        [
            (constant.name, *(_value(constant, value) for value in (constant.built_in, constant.value)),
             Span(constant.reason, "dim"))
            for constant in calibration.constants
        ],
        right=built_in,
    )  # fmt: skip
    used = calibration_path(calibration.gpu)
    is_used = used.resolve() == path.resolve()
    where = f"kept in {path}, and used" if is_used else f"kept in {path}, which nothing reads: {used} is used"
    legend = "Error: predicted / measured - 1. Left out: predicted with a fit to the other runs"
    errors = (_errors(calibration.runs), Line(legend, "dim", hang=2)) if calibration.runs else ()
    return Page((
        Line(f"Calibrated {', '.join(each.name for each in found)} of {calibration.gpu}: {where} by `plan` and `run`."),
        GAP,
        constants,
        GAP,
        *errors,
        listing(map(_far, filter(_is_far, found)), style="doubt"),
        listing((f"Ignored: {run}: {why}" for run, why in calibration.refused.items()), style="doubt"),
    ))  # fmt: skip


def _is_far(constant: FittedConstant) -> bool:
    """Whether a share of a data sheet's rate is far from the built-in one; the host's seconds differ by machine."""
    ratio = (constant.value or 0) / constant.built_in if constant.built_in else 1
    return not constant.name.endswith(("_s", "_bytes")) and not 1 / _FAR <= ratio <= _FAR


def _far(constant: FittedConstant) -> str:
    built_in, value = (_value(constant, each) for each in (constant.built_in, constant.value))
    return f"Doubt: {constant.name} {value} is far from {built_in}, by measured steps: was the GPU throttled or shared?"


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
