"""Results on disk and on the screen."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from harness.errors import ExitCode
from harness.records.atomic import write_atomically
from harness.report.figures import ABSENT
from harness.report.printing import plain_table, print_lines, show
from harness.runner.gpu_check.case import Case
from harness.runner.gpu_check.checks import NO_TIME
from harness.runner.gpu_check.planner_table import markdown, tables
from harness.runner.gpu_check.target import Target
from harness.runner.provenance import git_commit
from harness.units import format_bytes, format_seconds

SCHEMA_VERSION = 1
SUMMARY = "summary.json"
PLANNER = "planner"

Document = dict[str, object]


def exit_code(cases: Sequence[Case]) -> ExitCode:
    """3 when something failed, 0 when all that was asked was done and held, 6 when parts of it could not be done."""
    if any(case.verdict == "fail" for case in cases):
        return ExitCode.RUN_FAILED
    return ExitCode.OK if cases and all(case.is_whole for case in cases) else ExitCode.INCONCLUSIVE


def write_case(folder: Path, target: Target, case: Case) -> None:
    """``<folder>/<case>.json``: short, for people to keep. One of which nothing is known replaces no earlier one."""
    path = folder / f"{case.name}.json"
    if not (case.is_unknown and path.is_file()):
        _write(path, case_document(target, case))


def case_document(target: Target, case: Case) -> Document:
    """One case: setting, checks, figures, and what it was measured with."""
    record = case.record
    return {
        "schema_version": SCHEMA_VERSION,
        "check": case.name,
        "verdict": case.verdict,
        "recompute": case.recompute,
        "checks": [asdict(check) for check in case.checks],
        "figures": asdict(case.figures),
        "seconds": round(case.seconds, 1),
        "fingerprint": case.fingerprint,
        "modules": record.effective.modules if record else {},
        "status": record.status if record else None,
        "failure": record.failure if record else None,
        "suspect": list(record.suspect) if record else [],
        "notes": [note for rank in record.ranks for note in rank.notes] if record else [],
        "versions": case.versions,
        **measured_on(target),
        "git_commit": git_commit(),
        "facts": case.facts,
        "measured_at": record.provenance.started_at if record else None,
    }


def write_summary(folder: Path, target: Target, cases: Sequence[Case], seconds: float) -> None:
    """``<folder>/summary.json``: every case with verdict, figures and failures; ``seconds`` of the last sitting."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "exit_code": int(exit_code(cases)),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        **measured_on(target),
        "git_commit": git_commit(),
        "versions": next((case.versions for case in cases if case.versions), {}),
        "cases": [
            {"check": case.name, "verdict": case.verdict, "recompute": case.recompute, "seconds": case.seconds,
             **asdict(case.figures), "checks": {check.name: f"{check.verdict}: {check.found}" for check in case.checks}}
            for case in cases
        ],
    }  # fmt: skip
    _write(folder / SUMMARY, document)


def write_planner(folder: Path, target: Target, cases: Sequence[Case]) -> None:
    """``<folder>/planner.json`` and ``.md``: every prediction beside its measurement, if there are any."""
    groups = tables(cases)
    if not groups:
        return
    _write(folder / f"{PLANNER}.json", {"schema_version": SCHEMA_VERSION, **measured_on(target), "groups": groups})
    write_atomically(folder / f"{PLANNER}.md", markdown(target, cases))


def measured_on(target: Target) -> Document:
    """Device, software and code; two sittings in which they differ are not put together."""
    device = {"gpu": target.gpu, "device": target.device, "driver": target.driver, "total_bytes": target.total_bytes}
    return {**device, "software": target.software.model_dump(), "code": target.code}


def _write(path: Path, document: Document) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def print_cases(console: Console, cases: Sequence[Case]) -> None:
    """One table, then every failure and everything that was left out, in words."""
    figures = ("Step", "Allocated", "Reserved", "Device used")
    table = plain_table("Check", "Verdict", *figures, "Loss", "Wall", right={*figures, "Wall"})
    for case in cases:
        f = case.figures
        lost = ABSENT if f.loss_first is None or f.loss_last is None else f"{f.loss_first:.4f} to {f.loss_last:.4f}"
        table.add_row(
            case.name, case.verdict, ABSENT if f.step_time_s is None else format_seconds(f.step_time_s),
            *(_bytes(value) for value in (f.peak_allocated_bytes, f.peak_reserved_bytes, f.peak_device_bytes)),
            lost, format_seconds(case.seconds),
        )  # fmt: skip
    show(console, table)
    print_lines(console, _remarks(cases))


def _remarks(cases: Iterable[Case]) -> list[str]:
    remarks, is_short = list[str](), False
    for case in cases:
        remarks += [f"{case.name} failed: {text}" for text in case.failures]
        remarks += [f"{case.name}: {c.name} skipped: {c.found}" for c in case.checks if c.verdict == "skipped"]
        unknown = [check for check in case.checks if check.verdict == "not_run"]
        remarks += [f"{case.name}: {c.name} not known: {c.found}" for c in unknown if c.found != NO_TIME]
        left = [check.name for check in unknown if check.found == NO_TIME]
        if left or not case.checks:
            what = f": {'; '.join(left)}" if left else ""
            remarks.append(f"{case.name} was not run, the time was over{what}")
        is_short = is_short or bool(unknown) or not case.checks
    return [*remarks, *(["the same command with --resume goes on from here"] if is_short else [])]


def _bytes(value: int | None) -> str:
    return ABSENT if value is None else format_bytes(value)
