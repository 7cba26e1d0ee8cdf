"""Shows the plan, the progress and the answer of a sweep."""

from dataclasses import dataclass
from pathlib import Path

from harness.batch.plan import BatchDisplay
from harness.records.sweep import Cell, SweepPlan
from harness.showing import json
from harness.showing.json import SCHEMA_VERSION, Document
from harness.showing.printing import Console, print_lines
from harness.showing.terminal import show_page
from harness.sweep.document import sweep_document
from harness.sweep.page import plan_page, summary_lines, sweep_page
from harness.sweep.values import SweepVerdict
from harness.units import counted


def plan_document(plan: SweepPlan) -> Document:
    """`sweep --dryrun --json`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dryrun": True,
        "title": plan.title,
        "recipe": plan.recipe,
        "gpu": plan.gpu,
        "control": plan.control,
        "axes": [axis.model_dump(mode="json") for axis in plan.axes],
        "grid": plan.grid,
        "repeats": plan.repeats,
        "capacity_bytes": plan.capacity_bytes,
        "margin": plan.margin,
        "notes": list(plan.notes),
        "cells": [_cell(cell) for cell in plan.cells],
    }


def _cell(cell: Cell) -> Document:
    return {
        "index": cell.index,
        "name": cell.name,
        "changes": cell.changes,
        "recompute": cell.recompute,
        "fate": cell.fate,
        "reason": cell.reason or None,
        "same_as": cell.same_as,
        "rules": [finding.id for finding in cell.findings if finding.blocks],
        "fingerprint": cell.spec.fingerprint if cell.spec else None,
        "prediction": cell.prediction.model_dump(mode="json") if cell.prediction else None,
        "no_prediction": cell.no_prediction or None,
    }


@dataclass(frozen=True)
class SweepDisplay(BatchDisplay):
    """Where the answer and the narration of a sweep go."""

    def plan(self, plan: SweepPlan) -> None:
        """The dry run: every cell, what is predicted of it and what would become of it."""
        if self.as_json:
            print(json.text(plan_document(plan)))  # noqa: T201 (the answer)
        else:
            show_page(plan_page(plan))

    def begins(self, plan: SweepPlan, sweep_dir: Path, num_due: int, warning: str = "") -> None:
        """Before the first run: how many cells run, which do not and why, and how to go on after a kill."""
        self.says(*summary_lines(plan), f"{counted(num_due, 'run')} to do, kept in {sweep_dir}")
        if warning:
            self.says(f"Warning: {warning}", style="bold")

    def result(self, verdict: SweepVerdict, reports: tuple[Path, ...], sweep_dir: Path, num_due: int) -> None:
        """The answer; also of a sweep that was cut short, which says how to go on."""
        if self.as_json:
            document = sweep_document(verdict, reports) | {"sweep_dir": str(sweep_dir), "num_runs_due": num_due}
            print(json.text(document))  # noqa: T201 (the answer)
        else:
            show_page(sweep_page(verdict))
            print_lines(Console(highlight=False), [f"Report: {path}" for path in reports])
        if num_due:
            are = "is" if num_due == 1 else "are"
            self.says(f"{counted(num_due, 'run')} {are} not done: mbr-perf sweep --resume {sweep_dir}")
