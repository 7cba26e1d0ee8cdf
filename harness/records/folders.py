"""Folders of results and recipes: their places, names and permissions."""

import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import harness
from harness.errors import os_errors_reported
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


def new_folder(parent: Path, label: str, inner: Iterable[str]) -> Path:
    """Make ``<parent>/<UTC time>-<label>-<8 hex>`` with the folders ``inner``. BadRequestError if it cannot be made."""
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = re.sub(r"[^A-Za-z0-9._]+", "-", label).strip("-.") or parent.name.removesuffix("s")
    folder = parent / f"{time}-{name}-{secrets.token_hex(4)}"
    with os_errors_reported(f"{folder}: cannot be made", "name a writable folder with --results_dir"):
        parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o750)
        for each in inner:
            (folder / each).mkdir(mode=0o750)
    return folder
