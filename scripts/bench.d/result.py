"""One benchmark's outcome, and its machine."""

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from harness.launch.machine import installed_software
from harness.measure.provenance import git_commit
from harness.records.rank import processor_name
from harness.records.store import write_atomically

Verdict = Literal["met", "missed", "inconclusive"]

# Half a core of other work per core distorts every time measured here.
QUIET_LOAD = 0.5


@dataclass(frozen=True)
class Result:
    """``value`` against ``goal`` (at most), both in ``unit``. ``details``: samples and spread, by name.

    ``inconclusive``: why it proves nothing to miss the goal.
    """

    name: str
    title: str
    value: float
    goal: float
    unit: str
    details: dict[str, object] = field(default_factory=dict)
    inconclusive: str = ""

    @property
    def verdict(self) -> Verdict:
        """Return whether the goal is met, where the measurement is good enough to say so."""
        if self.inconclusive and self.value > self.goal:
            return "inconclusive"
        return "met" if self.value <= self.goal else "missed"


def machine() -> dict[str, object]:
    """Return processor, cores, and the load before the first benchmark, which shows other work."""
    return {
        "processor": processor_name(),
        "num_cores": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def is_quiet(measured_on: dict[str, object]) -> bool:
    """Return whether little else ran on the machine before."""
    load, cores = measured_on["load_before"], measured_on["num_cores"]
    return float(str(load)) <= QUIET_LOAD * float(str(cores))


def keep(folder: Path, result: Result, measured_on: dict[str, object]) -> Path:
    """Write ``<folder>/<name>.json`` whole."""
    document = {
        **asdict(result),
        "verdict": result.verdict,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**measured_on, "load_after": round(os.getloadavg()[0], 2)},
        "quiet": is_quiet(measured_on),
        "versions": installed_software().model_dump(exclude={"gpu"}),
    }
    return write_result(folder, result.name, document)


def write_result(folder: Path, name: str, document: dict[str, object]) -> Path:
    """Write ``<folder>/<name>.json`` whole, with its schema version and the commit that was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    whole = {"schema_version": 1, **document, "git_commit": git_commit()}
    write_atomically(path, json.dumps(whole, indent=1, allow_nan=False) + "\n")
    return path
