"""Shows the plan, the progress and the answer of a sweep."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from harness.records.sweep import Cell, SweepPlan
from harness.showing import json
from harness.showing.figures import ABSENT, capacities_text
from harness.showing.json import SCHEMA_VERSION, Document
from harness.showing.printing import Console, plain_table, print_hanging, print_lines, show
from harness.showing.progress import CellProgress, cell_progress
from harness.sweep.document import sweep_document
from harness.sweep.remarks import closing_lines, headline, remarks
from harness.sweep.rows import rows
from harness.sweep.values import SweepVerdict
from harness.units import format_bytes, format_percent, format_seconds

_STYLES = {"ok": "green", "OOM": "red", "failed": "bold red", "interrupted": "yellow"}
_WIDE = 150


def print_sweep(console: Console, verdict: SweepVerdict) -> None:
    """Everything but the pictures; also of a sweep that is not finished. Piped, the table is as wide as it needs."""
    print_lines(console, [f"{verdict.title}: {headline(verdict)}"], style="bold")
    print_lines(console, [f"Note: {note}" for note in verdict.notes])
    console.print()
    table_of = rows(verdict, narrow=console.is_terminal and console.width < _WIDE)
    right = [title for title, is_right in zip(table_of.titles, table_of.right, strict=True) if is_right]
    table = plain_table(*table_of.titles, right=right)
    for texts in table_of.texts:
        table.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in texts))
    show(console, table)
    console.print()
    for remark in remarks(verdict):
        print_hanging(console, Text(remark.line, style="red" if remark.is_bad else ""), 2)
    *lines, answer = closing_lines(verdict)
    print_lines(console, lines)
    console.print()
    print_hanging(console, Text(answer, style="bold"), 2)


_FATES = {"run": "run", "pruned": "pruned", "skipped_inert": "skipped, inert", "illegal": "illegal"}


def print_plan(console: Console, plan: SweepPlan) -> None:
    """The table of `sweep --dryrun`, and why cells do not run."""
    print_lines(console, [plan.title], style="bold")
    print_lines(console, [f"Note: {note}" for note in plan.notes])
    table = plain_table("#", "Cell", "Fate", "Predicted peak", "Range", "Step", "Recompute FLOPs", right=_RIGHT)
    for cell in plan.cells:
        table.add_row(*_row(plan, cell))
    show(console, table)
    print_lines(console, ["", *_reasons(plan), *_unpredicted(plan), _memory(plan), *_planned_runs(plan)])


_RIGHT = ("#", "Predicted peak", "Range", "Step", "Recompute FLOPs")


def summary_lines(plan: SweepPlan) -> list[str]:
    """The plan in few lines: title, notes, cells that do not run."""
    return [plan.title, *(f"Note: {note}" for note in plan.notes), *_planned_runs(plan), *_reasons(plan)]


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


def _row(plan: SweepPlan, cell: Cell) -> tuple[str, ...]:
    name = f"{cell.name} (control)" if cell.name == plan.control else cell.name
    foretold = cell.prediction
    if foretold is None:
        return (f"{cell.index}", name, _FATES[cell.fate], ABSENT, ABSENT, ABSENT, ABSENT)
    low, high = foretold.range_bytes
    step = format_seconds(foretold.step_time_s) if foretold.step_time_s is not None else ABSENT
    again = format_percent(foretold.recompute_flops / foretold.model_flops)
    between = f"{format_bytes(low)} to {format_bytes(high)}"
    return (f"{cell.index}", name, _FATES[cell.fate], format_bytes(foretold.peak_bytes), between, step, again)


def _reasons(plan: SweepPlan) -> list[str]:
    return [f"{cell.name}: {_FATES[cell.fate]}: {cell.reason}" for cell in plan.cells if cell.fate != "run"]


def _unpredicted(plan: SweepPlan) -> list[str]:
    why = [cell.no_prediction for cell in plan.cells if cell.fate == "run" and cell.prediction is None]
    return [f"Not predicted: {reason}" for reason in dict.fromkeys(why)]


def _memory(plan: SweepPlan) -> str:
    if len(plan.capacities) > 1:
        return f"Memory per rank: each cell's own, {capacities_text(plan.capacities)}"
    if plan.capacity_bytes is None:
        return "Memory: no limit is known, so nothing is pruned (--memory_limit sets one)"
    return f"Memory: {format_bytes(plan.capacity_bytes)} per rank"


def _planned_runs(plan: SweepPlan) -> list[str]:
    running = sum(cell.fate == "run" for cell in plan.cells)
    repeats = f", {plan.repeats} times each, interleaved" if plan.repeats > 1 else ""
    return [f"{running} of {len(plan.cells)} cells run{repeats}; the control is {plan.control}"]


@dataclass(frozen=True)
class SweepDisplay:
    """Where the answer and the narration go."""

    as_json: bool = False

    @property
    def _narration(self) -> Console:
        return Console(stderr=True, highlight=False)

    def plan(self, plan: SweepPlan) -> None:
        """The dry run: every cell, what is predicted of it and what would become of it."""
        if self.as_json:
            print(json.text(plan_document(plan)))  # noqa: T201 (the answer)
        else:
            print_plan(Console(highlight=False), plan)

    def says(self, line: str) -> None:
        """What is being waited for."""
        print_lines(self._narration, [line])

    def begins(self, plan: SweepPlan, sweep_dir: Path, num_due: int, warning: str = "") -> None:
        """Before the first run: how many cells run, which do not and why, and how to go on after a kill."""
        print_lines(self._narration, [*summary_lines(plan), f"{_runs(num_due)} to do, kept in {sweep_dir}"])
        if warning:
            print_lines(self._narration, [f"Warning: {warning}"], style="bold")

    @contextmanager
    def progress(self, num_due: int) -> Iterator[CellProgress]:
        """Bars on a terminal, lines elsewhere."""
        with cell_progress(self._narration, num_due) as progress:
            yield progress

    def result(self, verdict: SweepVerdict, reports: tuple[Path, ...], sweep_dir: Path, num_due: int) -> None:
        """The answer; also of a sweep that was cut short, which says how to go on."""
        if self.as_json:
            document = sweep_document(verdict, reports) | {"sweep_dir": str(sweep_dir), "num_runs_due": num_due}
            print(json.text(document))  # noqa: T201 (the answer)
        else:
            print_sweep(Console(highlight=False), verdict)
            print_lines(Console(highlight=False), [f"Report: {path}" for path in reports])
        if num_due:
            told = f"{_runs(num_due)} {'is' if num_due == 1 else 'are'} not done: mbr-perf sweep --resume {sweep_dir}"
            print_lines(self._narration, [told])


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"
