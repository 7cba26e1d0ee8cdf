"""The results: a JSON file per case, summary.json and planner.md; reading them back; the table on the screen."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from case import NO_TIME, PEAKS, Case, Check
from machine import Target
from phases import markdown

from harness.errors import BadRequestError, ExitCode, raise_all
from harness.measure.provenance import git_commit
from harness.records.folders import checkout_dir
from harness.records.store import write_atomically
from harness.results.archive import SUFFIX, Places, archive
from harness.show.figures import ABSENT
from harness.show.page import Column, Page, listing, table
from harness.units import format_bytes, format_seconds

SCHEMA_VERSION = 1
SUMMARY = "summary.json"
PLANNER = "planner.md"


def archive_problem(target: Path) -> str | None:
    """Return why :func:`pack` could not write this file."""
    fits = target.name.endswith(SUFFIX) and not target.exists() and target.absolute().parent.is_dir()
    return None if fits else f"--archive {target} must be a new file named {SUFFIX} in a folder that exists"


def exit_code(cases: Sequence[Case]) -> ExitCode:
    """Return 3 when a check failed, 0 when every check passed, 6 when some could not be carried out."""
    if any(case.verdict == "fail" for case in cases):
        return ExitCode.RUN_FAILED
    return ExitCode.OK if cases and all(case.is_whole for case in cases) else ExitCode.INCONCLUSIVE


def write_case(folder: Path, target: Target, case: Case) -> None:
    """Write ``<folder>/<case>.json``. A case about which nothing is known replaces no earlier one."""
    path = folder / f"{case.name}.json"
    if case.is_unknown and path.is_file():
        return
    document = {
        "schema_version": SCHEMA_VERSION,
        "check": case.name,
        "verdict": case.verdict,
        **{name: value for name, value in asdict(case).items() if name != "name"},
        **target.identity,
        "git_commit": git_commit(),
    }
    _write(path, document)


def write_summary(folder: Path, target: Target, cases: Sequence[Case], seconds: float) -> None:
    """Write ``summary.json`` with every case, and ``planner.md`` where there is a comparison.

    ``seconds``: of the last sitting.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "exit_code": int(exit_code(cases)),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        **target.identity,
        "git_commit": git_commit(),
        "versions": next((case.run["versions"] for case in cases if "versions" in case.run), {}),
        "cases": [
            {"check": case.name, "verdict": case.verdict, "recompute": case.recompute, "seconds": case.seconds,
             **case.figures, "checks": {check.name: f"{check.verdict}: {check.found}" for check in case.checks}}
            for case in cases
        ],
    }  # fmt: skip
    _write(folder / SUMMARY, document)
    if any("planner" in case.facts for case in cases):
        write_atomically(folder / PLANNER, markdown(target, cases))


def _write(path: Path, document: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


@dataclass
class Earlier:
    """``cases`` of earlier sittings with the same device, software and code; ``left_out``: names of others by reason."""

    cases: dict[str, Case] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    @property
    def kept(self) -> dict[str, Case]:
        """Return the cases that passed, and the tables of the planner, whose rows count one by one."""
        return {name: case for name, case in self.cases.items() if case.verdict == "pass" or "planner" in case.facts}

    @property
    def notes(self) -> list[str]:
        return [f"left out, {reason}: {', '.join(names)}" for reason, names in self.left_out.items()]


def earlier_cases(folder: Path, target: Target) -> Earlier:
    """Read the cases in ``folder``. BadRequestError with every file that cannot be read."""
    earlier, problems = Earlier(), list[BadRequestError]()
    for path in sorted(path for path in folder.glob("*.json") if path.name != SUMMARY):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if reason := _difference(document, target):
                earlier.left_out.setdefault(reason, []).append(path.stem)
            else:
                fields = {name: document[name] for name in ("recompute", "seconds", "figures", "run", "facts")}
                checks = tuple(Check(**check) for check in document["checks"])
                earlier.cases[path.stem] = Case(document["check"], checks=checks, **fields)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(
                BadRequestError(f"{path}: cannot be read: {error!r}", remedy="remove it, or use another --out")
            )
    raise_all(problems)
    return earlier


def _difference(document: Mapping[str, Any], target: Target) -> str | None:
    """Return why a case does not belong to what is measured now; None where it does."""
    differing = {name for name, value in target.identity.items() if document.get(name) != value}
    if differing - {"software", "code"}:
        return "other device or driver"
    if "software" in differing:
        return "other software"
    return "other code" if differing else None


def pack(target: Path, results: Path, runs: Path) -> None:
    """Pack results and runs as `results archive` does: redacted, without what is no text."""
    if results.is_dir() and not results.is_relative_to(runs):
        shutil.copytree(results, runs / "results", dirs_exist_ok=True)
    places = Places.of(((runs, "RUNS"), (checkout_dir(), "CHECKOUT"), (Path.home(), "~")))
    archive(runs, target, places)


def cases_page(cases: Sequence[Case]) -> Page:
    """One table, then every failure and everything that was left out, in words."""
    figures = {"Step": 0, "Allocated": 0, "Reserved": 1, "Device used": 0}
    columns = (
        Column("Check"),
        Column("Verdict"),
        *(Column(name, right=True, drop=drop) for name, drop in figures.items()),
        Column("Loss", drop=3),
        Column("Wall", right=True, drop=2),
    )
    return Page((table(columns, map(_row, cases)), listing(_remarks(cases))))


def _row(case: Case) -> tuple[str, ...]:
    first, last, step = (case.figures.get(name) for name in ("loss_first", "loss_last", "step_time_s"))
    peaks = map(case.figures.get, PEAKS)
    return (
        case.name,
        case.verdict,
        ABSENT if step is None else format_seconds(step),
        *(ABSENT if value is None else format_bytes(int(value)) for value in peaks),
        ABSENT if first is None or last is None else f"{first:.4f} to {last:.4f}",
        format_seconds(case.seconds),
    )


def _remarks(cases: Iterable[Case]) -> list[str]:
    remarks, is_short = list[str](), False
    for case in cases:
        for check in case.checks:
            if check.verdict in ("fail", "skipped"):
                word = "failed" if check.verdict == "fail" else "skipped"
                remarks.append(f"{case.name}: {check.name} {word}: {check.found}")
            elif check.verdict == "not_run" and check.found != NO_TIME:
                remarks.append(f"{case.name}: {check.name} not known: {check.found}")
        left = [check.name for check in case.checks if check.verdict == "not_run" and check.found == NO_TIME]
        if left or not case.checks:
            remarks.append(f"{case.name} was not run, no time left{': ' * bool(left)}{'; '.join(left)}")
        is_short = is_short or bool(left) or case.is_unknown
    return [*remarks, *(["to go on from here, repeat the command with --resume"] if is_short else [])]
