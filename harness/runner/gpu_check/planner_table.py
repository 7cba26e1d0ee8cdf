"""Prediction, measurement and difference of every setting and phase, for people (Markdown) and programs (JSON)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.runner.gpu_check.case import Case
from harness.runner.gpu_check.phases import TOLERANCES, Row
from harness.runner.gpu_check.target import Target
from harness.units import format_percent

TITLES = {"weights": "Weights", "gradients": "With gradients", "optimizer": "After optimizer init",
          "forward": "Forward peak", "backward": "Backward peak", "optimizer_step": "Optimizer step"}  # fmt: skip
HEAD = "| Recompute | " + " | ".join(TITLES.values()) + " |\n|---|" + "---|" * len(TITLES)


def tables(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The group of every case that compared something, as its file has it."""
    found = (case.facts.get("planner") for case in cases)
    return [dict(table) for table in found if isinstance(table, Mapping)]


def markdown(target: Target, cases: Sequence[Case]) -> str:
    """One table per group; a cell is predicted / measured in GB and the difference."""
    return "\n".join(_lines(target, tables(cases))) + "\n"


def _lines(target: Target, groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    tolerated = ", ".join(f"{TITLES[phase].lower()} {limit:.0%}" for phase, limit in TOLERANCES.items())
    yield f"# Predicted and measured memory by phase, {target.device}"
    yield ""
    yield "Bytes in live tensors on the only rank, two layers; a cell is predicted / measured in GB, and by how much more "
    yield f"was measured. Judged: {tolerated}; cells in brackets are not judged, for the reason below their table."
    for group in groups:
        yield ""
        yield f"## {group['shape']}, {group['compute_dtype']}, {group['attention']} attention"
        yield ""
        yield from _group([_row(row) for row in group["rows"]])


def _group(rows: Sequence[Row]) -> Iterator[str]:
    shown = [row for row in rows if row.predicted]
    if shown:
        yield HEAD
    for row in shown:
        name = row.recompute if row.check.verdict in ("pass", "not_run") else f"**{row.recompute}**"
        yield f"| {name} | " + " | ".join(_cell(row, phase) for phase in TITLES) + " |"
    notes = [*_refusals(rows), *_problems(rows), *_reasons(rows)]
    if shown and notes:
        yield ""
    yield from notes


def _cell(row: Row, phase: str) -> str:
    predicted, measured = (row.predicted or {}).get(phase), (row.measured or {}).get(phase)
    said = " / ".join("-" if value is None else f"{value / 1e9:.3f}" for value in (predicted, measured))
    difference = row.difference(phase)
    text = said if difference is None else f"{said} {format_percent(difference)}"
    return f"({text})" if phase in (row.unjudged or {}) else text


def _refusals(rows: Sequence[Row]) -> Iterator[str]:
    by_rules: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row.refused_by:
            by_rules.setdefault(tuple(row.refused_by), []).append(row.recompute)
    for rules, texts in by_rules.items():
        yield f"* refused by {', '.join(rules)} (`mbr-perf rules show {rules[0]}`): {'; '.join(texts)}"


def _problems(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.problem:
            yield f"* {row.recompute}: {' '.join(row.problem.split())}"
    left = [row.recompute for row in rows if row.check.verdict == "not_run"]
    if left:
        yield f"* not measured in the time there was: {'; '.join(left)}"


def _reasons(rows: Sequence[Row]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for phase, reason in {pair for row in rows for pair in (row.unjudged or {}).items()}:
        reasons.setdefault(reason, []).append(phase)
    for reason, named in sorted(reasons.items()):
        yield f"* not judged, {', '.join(TITLES[phase].lower() for phase in TITLES if phase in named)}: {reason}"


def _row(row: Mapping[str, Any]) -> Row:
    return Row(**{**row, "refused_by": tuple(row["refused_by"])})
