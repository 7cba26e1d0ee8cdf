"""Opens snapshots of torch's CUDA allocator in a separate process, with limits and without running their code."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadRequestError, os_errors_reported
from harness.records.quoting import quoted_error
from harness.show.terminal import narration
from harness.snapshot.values import DeviceMemory, Question, SnapshotSummary
from harness.units import GIB, counted

_CAP_BYTES = 2 * GIB
_NOT_A_SNAPSHOT = "give a file written by torch.cuda.memory._dump_snapshot, not compressed"


@dataclass(frozen=True)
class SnapshotLimits:
    """Limits by a file's size: dicts take three times its bytes (results/benchmarks/snapshot_memory.json)."""

    largest_file_bytes: int = _CAP_BYTES
    memory_base_bytes: int = 512 * 1024**2
    memory_per_byte: float = 6.0
    time_base_s: float = 30.0
    time_per_byte_s: float = 60e-8
    replays_per_byte_s: float = 400e-8  # of one row: an event of 150 bytes is replayed about 15 times


def snapshot_summary(
    path: Path, limits: SnapshotLimits | None = None, question: Question | None = None
) -> SnapshotSummary:
    """Summarise the file, and answer the question about its history. BadRequestError: it has none, or is unreadable."""
    limits = limits or SnapshotLimits()
    with os_errors_reported(f"{path}: cannot be read", _NOT_A_SNAPSHOT):
        if not path.is_file() and path.exists():
            found = [str(each) for each in sorted([*path.glob("*.pickle"), *path.glob("ranks/*.pickle")])[:1]]
            remedy = f"{_NOT_A_SNAPSHOT}{''.join(f', e.g. {each}' for each in found)}"
            raise BadRequestError(f"{path}: a folder, a pipe or a device, not a file", remedy=remedy)
        num_bytes = path.stat().st_size
        if num_bytes > limits.largest_file_bytes:
            most = limits.largest_file_bytes / 1e6
            raise BadRequestError(
                f"{path}: {num_bytes / 1e6:.0f} MB; mbr-perf opens files of up to {most:.0f} MB",
                remedy="record a shorter history: a smaller max_entries of _record_memory_history",
            )
        return SnapshotSummary.model_validate_json(_answer(path, num_bytes, limits, question))


def fullest_device(summary: SnapshotSummary) -> DeviceMemory:
    """Return the device with the most reserved memory. BadRequestError for a snapshot without devices."""
    device = summary.fullest
    if device is None:
        raise BadRequestError(
            f"{summary.file}: it holds no memory of any device", remedy="take the snapshot while tensors are in memory"
        )
    return device


def _answer(path: Path, num_bytes: int, limits: SnapshotLimits, question: Question | None) -> str:
    num_rows = (1 + len(question.settings)) * (1 + len(question.without)) if question else 0
    limit = limits.memory_base_bytes + int(limits.memory_per_byte * num_bytes)
    seconds = limits.time_base_s + (limits.time_per_byte_s + limits.replays_per_byte_s * num_rows) * num_bytes
    # -P: Python imports nothing from the current folder.
    command = [sys.executable, "-P", "-m", "harness.snapshot.child", str(path), str(num_bytes), str(limit)]
    command += [question.model_dump_json()] if question else []
    doing = f"Reading {path.name}" + f", then {counted(num_rows, 'replay')}" * bool(num_rows)
    with path.open("rb") as file, narration().status(doing):
        try:
            done = subprocess.run(command, stdin=file, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as error:
            message = f"{path}: reading it took more than {seconds:.0f} s"
            raise BadRequestError(message, remedy=_NOT_A_SNAPSHOT) from error
    code, answer = done.returncode, done.stdout.decode("utf-8", "replace").strip()
    if code == 2 and answer:
        problem, _, remedy = answer.partition("\n")
        raise BadRequestError(f"{path}: {problem}", remedy=remedy or _NOT_A_SNAPSHOT)
    if code != 0:
        what = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise BadRequestError(
            f"{path}: reading it ended with {what} ({quoted_error(done.stderr)}; it may take {limit / 1e9:.1f} GB)",
            remedy=_NOT_A_SNAPSHOT,
        )
    return answer
