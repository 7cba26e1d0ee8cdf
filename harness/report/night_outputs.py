"""Where the reports of a night go beside its own folder, as one value that is checked before anything runs."""

from dataclasses import dataclass, fields
from pathlib import Path

from harness.errors import BadRequestError, raise_all
from harness.records.folders import why_unwritable


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Copies that were asked for; None: not. ``html`` is a folder, ``step_summary`` is appended to."""

    junit: Path | None = None
    step_summary: Path | None = None
    html: Path | None = None


def require_outputs(outputs: Outputs) -> None:
    """BadRequestError, all at once, for what could not be written after hours of running."""
    raise_all([problem for field in fields(outputs) for problem in _problems(field.name, getattr(outputs, field.name))])


def _problems(name: str, path: Path | None) -> list[BadRequestError]:
    if path is None:
        return []
    option = f"--{name} {path}"
    if name == "html" and path.exists() and not path.is_dir():
        return [BadRequestError(f"{option}: not a folder")]
    return _unwritable(option, path) if name == "html" else _of_a_file(option, path)


def _of_a_file(option: str, path: Path) -> list[BadRequestError]:
    if path.is_dir():
        return [BadRequestError(f"{option}: a folder", remedy="name a file")]
    if not path.parent.is_dir():
        return [BadRequestError(f"{option}: no folder {path.parent}", remedy="make it first")]
    return _unwritable(option, path)


def _unwritable(option: str, path: Path) -> list[BadRequestError]:
    why = why_unwritable(path)
    return [BadRequestError(f"{option}: cannot be written: {why}", remedy="name another place")] if why else []
