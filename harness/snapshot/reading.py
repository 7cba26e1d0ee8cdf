"""Opens snapshots of torch's CUDA allocator in a separate process, with limits and without running their code."""

import os
import shlex
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from harness.errors import BadRequestError
from harness.records.quoting import quoted_error
from harness.show.terminal import narration
from harness.snapshot.values import DeviceMemory, Question, SnapshotSummary
from harness.units import GIB, counted

_CAP_BYTES = 2 * GIB
_PACKED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd"}
_NOT_A_SNAPSHOT = "give a file written by torch.cuda.memory._dump_snapshot"


@dataclass(frozen=True)
class SnapshotLimits:
    """Limits for opening a file of a given size.

    Dicts take about three times the bytes of their pickle (results/benchmarks/snapshot_memory.json).
    """

    largest_file_bytes: int = _CAP_BYTES
    memory_base_bytes: int = 512 * 1024**2
    memory_per_byte: float = 6.0
    time_base_s: float = 30.0
    time_per_byte_s: float = 60e-8
    replays_per_byte_s: float = 400e-8  # of one row: an event of 150 bytes is replayed about 15 times


def snapshot_summary(
    path: Path, limits: SnapshotLimits | None = None, question: Question | None = None
) -> SnapshotSummary:
    """Summarise the file, and answer the question about its history.

    BadRequestError names the file: unreadable, too large, hostile, damaged, not a snapshot, or without a history.
    """
    limits = limits or SnapshotLimits()
    try:
        status = path.stat()
        _require_file(path, status.st_mode)
        num_bytes = status.st_size
        if num_bytes == 0:
            raise BadRequestError(
                f"{path}: is empty", remedy="check whether the disk is full or the job was killed, then record it again"
            )
        if num_bytes > limits.largest_file_bytes:
            most = limits.largest_file_bytes / 1e6
            raise BadRequestError(
                f"{path}: {num_bytes / 1e6:.0f} MB; mbr-perf opens files of up to {most:.0f} MB",
                remedy="record a shorter history: a smaller max_entries of _record_memory_history",
            )
        return SnapshotSummary.model_validate_json(_answer(path, num_bytes, limits, question))
    except ValidationError as error:
        message = f"{path}: its summary is incomplete: {error.errors()[0]['msg']}"
        raise BadRequestError(message, remedy=_NOT_A_SNAPSHOT) from error
    except FileNotFoundError as error:
        raise BadRequestError(f"{path}: no such file", remedy=_NOT_A_SNAPSHOT) from error
    except OSError as error:
        raise BadRequestError(f"{path}: cannot be read: {error.strerror}", remedy=_NOT_A_SNAPSHOT) from error


def _require_file(path: Path, mode: int) -> None:
    """Require a file, as the limits need its size. BadRequestError; for a folder it names the snapshots in it."""
    if stat.S_ISREG(mode):
        return
    if not stat.S_ISDIR(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device" if not stat.S_ISSOCK(mode) else "a socket"
        raise BadRequestError(
            f"{path}: {kind}, not a file", remedy=f"{_NOT_A_SNAPSHOT}; copy its content to a file first"
        )
    found = sorted([*path.glob("*.pickle"), *path.glob("ranks/*.pickle")])[:3]
    listed = f"name one of its files, e.g. {', '.join(map(str, found))}" if found else "it holds no *.pickle"
    raise BadRequestError(f"{path}: a folder, not a file", remedy=f"{_NOT_A_SNAPSHOT}; {listed}")


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
        begin = os.pread(file.fileno(), 8, 0)
        if packed := next((tool for magic, tool in _PACKED.items() if begin.startswith(magic)), None):
            remedy = f"decompress it first: {packed} -dc {shlex.quote(str(path))} > {shlex.quote(path.stem)}"
            raise BadRequestError(f"{path}: is compressed", remedy=remedy)
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
