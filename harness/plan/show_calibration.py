"""Shows what `plan --calibrate` fitted."""

from collections.abc import Callable, Iterable, Iterator, Sequence
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


_LEGEND = "Error: predicted / measured - 1. Left out: predicted with a fit to the other runs"
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
    used, names = calibration_path(calibration.gpu), ", ".join(each.name for each in found)
    kept = "" if used.resolve() == path.resolve() else f"kept in {path}; "
    errors = (_errors(calibration.runs), Line(_LEGEND, "dim", hang=2)) if calibration.runs else ()
    return Page((
        Line(f"Calibrated {names} of {calibration.gpu}: {kept}`plan` and `run` use {used}."),
        GAP,
        constants,
        GAP,
        *errors,
        listing(_doubts(found), style="doubt"),
        listing((f"Ignored: {run}: {why}" for run, why in calibration.refused.items()), style="doubt"),
    ))  # fmt: skip


def _doubts(found: Iterable[FittedConstant]) -> Iterator[str]:
    """Yield shares of the data sheet that are far from the built-in ones; the host's seconds differ by machine."""
    for each in found:
        name, (built_in, value) = each.name, (_value(each, of) for of in (each.built_in, each.value))
        if not name.endswith(("_s", "_bytes")) and not 1 / _FAR <= (each.value or 0) / each.built_in <= _FAR:
            yield f"Doubt: {name} {value} is far from {built_in}, by measured steps: was the GPU throttled or shared?"


def _errors(runs: Sequence[RunErrors]) -> Table:
    """Return both errors of each run, before and after, and of a fit without the run."""

    def read(name: str) -> Callable[[RunErrors], Words]:
        return lambda run: "-" if getattr(run, name) is None else f"{getattr(run, name) * 100:+.2f} %"

    errors = [
        (
            Column(f"{what.capitalize()} {when}".replace("_", " "), right=True, drop=drop),
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
