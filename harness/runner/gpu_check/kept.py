"""Cases of earlier sittings, read back from their files, so that a later one goes on where they stopped."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import BadRequestError
from harness.records.strict_json import once_each
from harness.runner.gpu_check.case import Case, Figures
from harness.runner.gpu_check.checks import Check
from harness.runner.gpu_check.report import SCHEMA_VERSION, SUMMARY, measured_on
from harness.runner.gpu_check.target import Target


def kept_cases(folder: Path, target: Target) -> dict[str, Case]:
    """By name, those that passed on this device with this software; a started table of the planner, too.

    BadRequestError for a file that cannot be read.
    """
    found: dict[str, Case] = {}
    for path in sorted(folder.glob("*.json")):
        document = _document(path)
        if path.name == SUMMARY or document.get("schema_version") != SCHEMA_VERSION or "check" not in document:
            continue
        if any(document.get(name) != value for name, value in measured_on(target).items()):
            continue
        case = _case(path, document)
        if case.verdict == "pass" or case.facts.get("planner"):
            found[case.name] = case
    return found


def _case(path: Path, document: Mapping[str, Any]) -> Case:
    try:
        return Case(
            name=document["check"],
            recompute=document["recompute"],
            checks=tuple(Check(**check) for check in document["checks"]),
            figures=Figures(**document["figures"]),
            seconds=document["seconds"],
            facts=document["facts"],
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
