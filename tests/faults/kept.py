"""What must hold of a sweep's folder after every kill: nothing corrupt, and what was finished once stays as it was."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from harness.records.collect import read_heartbeats
from harness.records.run import RunRecord
from harness.records.store import RECORD
from harness.records.strict_json import read_document
from harness.records.sweep import SWEEP, SweepData, read_sweep


@dataclass
class Kept:
    """The finished runs that were seen so far, by path: hash and time of the last change of their records.

    ``files_read`` and ``records_compared`` count what was looked at, a file once per look.
    """

    sweep_dir: Path
    seen: dict[Path, tuple[str, int]] = field(default_factory=dict)
    files_read: int = 0
    records_compared: int = 0

    def look(self) -> SweepData | None:
        """The sweep as it lies there; None where it had not decided on its cells. AssertionError if anything is wrong."""
        for path in self._files():
            with suppress(FileNotFoundError):  # a sweep that goes on moves the folders of unfinished runs aside
                self._read(path)
        self._compare()
        return read_sweep(self.sweep_dir) if (self.sweep_dir / SWEEP).is_file() else None

    def _files(self) -> Iterator[Path]:
        for folder, _, names in os.walk(self.sweep_dir):
            yield from (Path(folder, name) for name in names if not name.startswith("."))

    def _read(self, path: Path) -> None:
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.name.endswith(".progress.jsonl"):
            bad = read_heartbeats(path)[1]
            assert bad <= 1, f"{path}: {bad} lines are no heartbeats"
        else:
            return
        self.files_read += 1

    def _compare(self) -> None:
        now = {path: _stamp(path) for path in self.sweep_dir.glob(f"cells/*/*/{RECORD}")}
        for path, stamp in self.seen.items():
            assert now.get(path) == stamp, f"{path} was finished and is not what it was"
            self.records_compared += 1
        for path in now.keys() - self.seen.keys():
            read_document(path, RunRecord)
            assert ".incomplete-" not in path.parent.name, f"{path} was finished and was moved aside"
        self.seen = now


def _stamp(path: Path) -> tuple[str, int]:
    return sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns
