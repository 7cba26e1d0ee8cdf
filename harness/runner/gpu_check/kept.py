"""Cases of earlier sittings, read back from their files, so that a later one goes on where they stopped."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import BadRequestError
from harness.records.strict_json import once_each
from harness.runner.gpu_check.case import Case, Figures
from harness.runner.gpu_check.checks import Check
from harness.runner.gpu_check.report import SCHEMA_VERSION, SUMMARY, measured_on
from harness.runner.gpu_check.target import Target


@dataclass
class Earlier:
    """``cases`` by name, those of this device, software and code; ``left_out``: names of the others by reason."""

    cases: dict[str, Case] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    unreadable: list[BadRequestError] = field(default_factory=list)

    @property
    def kept(self) -> dict[str, Case]:
        """Those that passed, and started tables of the planner; what could still be looked at keeps a case from passing."""
        return {name: case for name, case in self.cases.items() if case.verdict == "pass" or case.facts.get("planner")}

    @property
    def told(self) -> list[str]:
        """What is not taken over, a line per reason."""
        lines = [f"not taken over, {reason}: {', '.join(names)}" for reason, names in self.left_out.items()]
        return [*lines, *(f"not taken over: {error.message}" for error in self.unreadable)]


def earlier_cases(folder: Path, target: Target) -> Earlier:
    """What the files of ``folder`` hold."""
    earlier = Earlier()
    for path in sorted(folder.glob("*.json")):
        try:
            document = _document(path)
            if path.name == SUMMARY or document.get("schema_version") != SCHEMA_VERSION or "check" not in document:
                continue
            reason = _difference(document, target)
            if reason:
                earlier.left_out.setdefault(reason, []).append(path.stem)
            else:
                case = _case(path, document)
                earlier.cases[case.name] = case
        except BadRequestError as error:
            earlier.unreadable.append(error)
    return earlier


def _difference(document: Mapping[str, Any], target: Target) -> str | None:
    """Why a case does not belong to what ``target`` measures now."""
    now = measured_on(target)
    differing = [name for name, value in now.items() if document.get(name) != value]
    if set(differing) - {"software", "code"}:
        return "of another device or driver"
    if "software" in differing:
        return "of other software"
    return "of other code" if differing else None


def _case(path: Path, document: Mapping[str, Any]) -> Case:
    try:
        return Case(
            name=document["check"],
            recompute=document["recompute"],
            checks=tuple(Check(**check) for check in document["checks"]),
            figures=Figures(**document["figures"]),
            seconds=document["seconds"],
            facts=document["facts"],
            document=document,
        )
    except (KeyError, TypeError) as error:
        raise _unreadable(path, f"not as this version writes it: {error}") from error


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once_each)
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    return document if isinstance(document, dict) else {}


def _unreadable(path: Path, why: str) -> BadRequestError:
    return BadRequestError(f"{path}: cannot be read: {why}", remedy="remove it, or leave --resume out")
