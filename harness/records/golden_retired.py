"""Goldens that were taken out of force: kept with who, when and why, and never compared with."""

import re
from datetime import datetime
from pathlib import Path

from harness.errors import BadRequestError
from harness.records.golden import GoldenRecord, golden_text
from harness.records.redact import redact
from harness.records.store import write_once
from harness.records.strict_json import read_document, read_each

RETIRED = "retired"
_MOST_A_DAY = 100


def retire(folder: Path, path: Path, golden: GoldenRecord, *, reason: str, author: str, now: datetime) -> Path:
    """Move the golden at ``path`` to ``<folder>/retired/<gpu>/<slug>.<UTC date>.json``; a second one that day gets a number.

    Nothing is overwritten, and the golden leaves its place only once the other file is on disk. BadRequestError for an
    empty reason or author, a golden that is not at a place below ``folder``, and a folder that cannot be written.
    """
    _check(folder, path, reason, author)
    told = {
        "retired_at": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "retired_by": redact(author.strip()),
        "retired_reason": redact(reason.strip()),
    }
    try:
        target = _write(
            folder / RETIRED / path.parent.name, path.stem, golden_text(golden.model_copy(update=told)), now
        )
        path.unlink()
    except OSError as error:
        raise BadRequestError(
            f"{path}: cannot be retired: {error.strerror}", remedy="name a writable folder with --golden_dir"
        ) from error
    return target


def _write(folder: Path, stem: str, text: str, now: datetime) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    day = now.strftime("%Y%m%d")
    for number in range(1, _MOST_A_DAY):
        target = folder / f"{stem}.{day}{f'-{number}' if number > 1 else ''}.json"
        try:
            write_once(target, text)
        except FileExistsError:
            continue
        return target
    raise BadRequestError(f"{folder / stem}: was retired {_MOST_A_DAY} times on {day}", remedy="that is no golden")


def _check(folder: Path, path: Path, reason: str, author: str) -> None:
    if not reason.strip():
        raise BadRequestError("--reason is empty", remedy="say why nothing is to be compared with it any more")
    if not author.strip():
        raise BadRequestError("--author is empty", remedy="pass --author, or set git config user.name")
    if path.resolve().parent.parent != folder.resolve():
        raise BadRequestError(
            f"{path}: not a golden in force below {folder}",
            remedy="mbr-perf golden list prints those; --golden_dir names others",
        )


def list_retired(folder: Path) -> tuple[dict[Path, GoldenRecord], dict[Path, BadRequestError]]:
    """Every retired golden below ``folder`` by path, oldest first for one place, and why others cannot be read."""
    return read_each(sorted(folder.glob(f"{RETIRED}/*/*.json")), GoldenRecord)


def retired_in_place_of(path: Path) -> GoldenRecord | None:
    """The golden that was last retired from ``path``; None where none ever was."""
    folder = path.parent.parent / RETIRED / path.parent.name
    mine = re.compile(re.escape(path.stem) + r"\.\d{8}(-\d+)?\.json")
    found = [read_document(each, GoldenRecord) for each in _files(folder) if mine.fullmatch(each.name)]
    return max(found, key=lambda golden: golden.retired_at or "", default=None)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def told_of(golden: GoldenRecord) -> str:
    """``was retired 2026-03-04 by somebody: the cluster is gone``."""
    return f"was retired {(golden.retired_at or '')[:10]} by {golden.retired_by}: {golden.retired_reason}"
