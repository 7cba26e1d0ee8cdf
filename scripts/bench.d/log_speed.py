"""Measures `mbr-perf diagnose LOG`: its start, and the processor time of each further MB of a training log."""

import tempfile
from hashlib import sha256
from pathlib import Path
from statistics import median

from processes import mbr_perf, timed
from result import Result

REPEATS = 3
GOAL_START_S, GOAL_S_PER_MB = 1.0, 0.2
SMALL, LARGE = 1, 8  # MB
STEP = (
    " [2026-08-21 14:03:27.{n:06d}] iteration {n:8d}/ 9999999 | consumed samples: {n:12d} | elapsed time per iteration "
    "(ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 401.3 | learning rate: 1.0E-05 | global batch size:   512 | "
    "lm loss: {loss:E} | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 | number of nan "
    "iterations:   0 |\n"
)
TIMERS = "(min, max) time across ranks (ms):\n" + "    forward-backward ..............: ({ms:.2f}, {ms:.2f})\n" * 9
WARNINGS = (
    "[rank{n}]: /opt/torch/c10d_logger.py:{n}: UserWarning: barrier(): using the device under current context.\n"
    "node{n}:{n}:{n} [3] NCCL INFO comm 0x{hash:.12} rank {n} nranks 64 cudaDev 3 - Init COMPLETE\n"
)
SHARD = "[2026-08-21 14:03:27] loaded shard /data/{hash:.8}/{hash:.40}.bin at offset 0x{hash:.10}\n"
ERRORS = (
    "WARNING: shard /data/{hash:.40} is slow, retrying\nError rate of reader {hash:.12} in /data/{hash:.40}: 0.01\n"
)
KINDS = {"timers": STEP + TIMERS, "warnings": STEP + WARNINGS, "distinct lines": SHARD, "errors": SHARD * 2 + ERRORS}
END = "Traceback (most recent call last):\nRuntimeError: CUDA error: out of memory\n"


def diagnose_start() -> Result:
    """Time the diagnosis of a log of one line."""
    seconds = _seconds(END)
    return Result(
        "diagnose_start", "mbr-perf diagnose, a short log", median(seconds), GOAL_START_S, "CPU s", {"cpu_s": seconds}
    )


def diagnose_log() -> Result:
    """Time a log of 8 MB and one of 1 MB, of each kind; the value is of the slowest kind."""
    details, values = dict[str, object](), list[float]()
    for kind, lines in KINDS.items():
        large, small = (_seconds(_log(size * 1_000_000, lines)) for size in (LARGE, SMALL))
        values.append(round((min(large) - min(small)) / (LARGE - SMALL), 4))
        details[kind] = {"cpu_s_per_mb": values[-1], "cpu_s_large": large, "cpu_s_small": small}
    title = "mbr-perf diagnose, per further MB of log"
    return Result("diagnose_log", title, max(values), GOAL_S_PER_MB, "CPU s", details)


def _log(num_bytes: int, kind: str) -> str:
    lines, size, number = list[str](), 0, 0
    while size < num_bytes:
        number += 1
        digest = sha256(str(number).encode()).hexdigest()
        lines.append(kind.format(n=number, ms=2800 + number % 97, loss=11.0 / number, hash=digest))
        size += len(lines[-1])
    return "".join(lines) + END


def _seconds(text: str) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        path.write_text(text)
        return [round(timed(mbr_perf("diagnose", str(path))).cpu_s, 3) for _ in range(REPEATS)]
