"""Folders of results and recipes: their places, names and permissions."""

import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import harness
from harness.errors import BadRequestError, closest, os_errors_reported
from harness.records.launch import OF_PROCESSES

_CHECKOUT = Path(harness.__file__).parents[1]
_OF_OTHERS = 0o007
SWEEPS, SUITES = "sweeps", "suites"
_NO_FAMILIES = frozenset({SUITES, SWEEPS, "examples"})


def checkout_dir() -> Path | None:
    """Return the source checkout that this package runs from; None for an installed wheel."""
    return _CHECKOUT if (_CHECKOUT / "pyproject.toml").is_file() else None


def results_dir(override: Path | None = None) -> Path:
    """Return the results folder: ``--results_dir``, the checkout's ``results``, or ``./results``."""
    if override is not None:
        return override
    checkout = checkout_dir()
    return checkout / "results" if checkout else Path("results")


def golden_dir(override: Path | None = None, *, default: Path = _CHECKOUT / "harness" / "_data" / "golden") -> Path:
    """Return the folder of goldens: ``override``, the checkout's ``results/golden``, or else the wheel's."""
    checkout = checkout_dir()
    return override or (checkout / "results" / "golden" if checkout else default)


def recipes_dir(override: Path | None = None) -> Path:
    """Return the directory of families: ``override``, the checkout's ``recipes``, or else the wheel's."""
    checkout = _CHECKOUT / "recipes"
    return override or (checkout if checkout.is_dir() else _CHECKOUT / "harness" / "_data" / "recipes")


def recipe_paths(directory: Path) -> list[Path]:
    """List the recipes of the directory by family and name."""
    return [path for path in sorted(directory.glob("*/*.yaml")) if path.parent.name not in _NO_FAMILIES]


def calibration_path(gpu: str, results: Path | None = None) -> Path:
    """Name the file that ``plan --calibrate`` writes and predictions read."""
    return results_dir(results) / "calibration" / f"{gpu}.json"


@contextmanager
def closed_to_others() -> Iterator[None]:
    """Close new files of this process to other users inside the block; the group keeps the shell's permissions."""
    before = os.umask(OF_PROCESSES)  # the old umask can only be read by setting a new one
    os.umask(before | _OF_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def new_folder(parent: Path, label: str, inner: Iterable[str] = (), *, now: datetime | None = None) -> Path:
    """Make ``<parent>/<UTC time>-<label>-<8 hex>`` with the folders ``inner``; the name is the id of its content.

    Two calls with the same label and second get two folders. BadRequestError if a folder cannot be made.
    """
    time = (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = re.sub(r"[^A-Za-z0-9._]+", "-", label).strip("-.") or parent.name.removesuffix("s")
    folder = parent / f"{time}-{name}-{secrets.token_hex(4)}"
    with os_errors_reported(f"{folder}: cannot be made", "name a writable folder with --results_dir"):
        parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o750)
        for each in inner:
            (folder / each).mkdir(mode=0o750)
    return folder


def folders(parent: Path) -> tuple[Path, ...]:
    """List the folders in ``parent`` by name, without links; empty if ``parent`` does not exist."""
    if not parent.is_dir():
        return ()
    return tuple(sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink()))


def named(start: str, among: Iterable[Path]) -> tuple[Path, ...]:
    """Return the paths whose name starts or ends with ``start``; none if ``start`` is empty."""
    return tuple(path for path in among if start and (path.name.startswith(start) or path.name.endswith(f"-{start}")))


def nearest_folder(typed: str, among: Iterable[Path]) -> str:
    """``did you mean ID?`` for a slip in an id or in its last eight digits; empty where no folder is near."""
    names = [path.name for path in among]
    by_end = {name.rpartition("-")[2]: name for name in names}
    near = closest(typed, names) or [by_end[end] for end in closest(typed, by_end)]
    return f"did you mean {near[0]!r}?" if near else ""


def folder_named(start: str, kinds: str, *parents: Path, remedy: str = "") -> Path:
    """Return the only folder in ``parents`` that :func:`named` finds. BadRequestError for none or several.

    ``kinds``: what the folders hold, such as ``run or sweep``. ``remedy``: for a name that no folder's is like.
    """
    every, where = [path for parent in parents for path in folders(parent)], os.path.commonpath(parents)
    found = named(start, every)
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(path.name for path in found[-5:])
        raise BadRequestError(f"{start!r} matches {len(found)} folders in {where}", remedy=f"name one of: {listed}")
    newest = f"the newest are: {', '.join(path.name for path in every[-3:])}" if every else f"{where} has none yet"
    raise BadRequestError(
        f"no {kinds} {start!r}: it is neither a path nor the start of an id in {where}",
        remedy=nearest_folder(start, every) or remedy or newest,
    )
