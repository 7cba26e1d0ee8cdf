"""What must hold of a sweep's folder after every kill: nothing corrupt, and what was finished once stays as it was."""

import json
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from harness.records.collect import read_heartbeats
from harness.records.run import RunRecord
from harness.records.store import RECORD
from harness.records.strict_json import read_document
from harness.records.sweeps import SWEEP, SweepData, read_sweep


@dataclass
class Kept:
    """The finished runs that were seen so far, by path: hash and time of the last change of their records."""

    sweep_dir: Path
    seen: dict[Path, tuple[str, int]] = field(default_factory=dict)

    def look(self) -> SweepData | None:
        """The sweep as it lies there; None where it had not decided on its cells. AssertionError says what is wrong."""
        for path in self.sweep_dir.rglob("*.json"):
            if not path.name.startswith("."):
                json.loads(path.read_text())
        for path in self.sweep_dir.rglob("*.progress.jsonl"):
            bad = read_heartbeats(path)[1]
            assert bad <= 1, f"{path}: {bad} lines are no heartbeats"
        self._compare()
        return read_sweep(self.sweep_dir) if (self.sweep_dir / SWEEP).is_file() else None

    def _compare(self) -> None:
        now = {path: _stamp(path) for path in self.sweep_dir.glob(f"cells/*/*/{RECORD}")}
        for path, stamp in self.seen.items():
            assert now.get(path) == stamp, f"{path} was finished and is not what it was"
        for path in now.keys() - self.seen.keys():
            read_document(path, RunRecord)
            assert ".incomplete-" not in path.parent.name, f"{path} was finished and was moved aside"
        self.seen = now


def _stamp(path: Path) -> tuple[str, int]:
    return sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns
