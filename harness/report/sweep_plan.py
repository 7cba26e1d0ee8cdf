"""A sweep before it runs: its cells, what is predicted of them, what is to become of them."""

from harness.records.sweep import Cell, SweepPlan
from harness.report.console import Console
from harness.report.figures import ABSENT, capacities_text
from harness.report.json import SCHEMA_VERSION, Document
from harness.report.printing import plain_table, print_lines, show
from harness.units import format_bytes, format_percent, format_seconds

_FATES = {"run": "run", "pruned": "pruned", "skipped_inert": "skipped, inert", "illegal": "illegal"}


def print_plan(console: Console, plan: SweepPlan) -> None:
    """The table of `sweep --dryrun`, and why cells do not run."""
    print_lines(console, [plan.title], style="bold")
    print_lines(console, [f"Note: {note}" for note in plan.notes])
    table = plain_table("#", "Cell", "Fate", "Predicted peak", "Range", "Step", "Recompute FLOPs", right=_RIGHT)
    for cell in plan.cells:
        table.add_row(*_row(plan, cell))
    show(console, table)
    print_lines(console, ["", *_reasons(plan), *_unpredicted(plan), _memory(plan), *_runs(plan)])


_RIGHT = ("#", "Predicted peak", "Range", "Step", "Recompute FLOPs")


def summary_lines(plan: SweepPlan) -> list[str]:
    """The plan in few lines: title, notes, cells that do not run."""
    return [plan.title, *(f"Note: {note}" for note in plan.notes), *_runs(plan), *_reasons(plan)]


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


def _runs(plan: SweepPlan) -> list[str]:
    running = sum(cell.fate == "run" for cell in plan.cells)
    repeats = f", {plan.repeats} times each, interleaved" if plan.repeats > 1 else ""
    return [f"{running} of {len(plan.cells)} cells run{repeats}; the control is {plan.control}"]
