"""Measures `mbr-perf diagnose LOG`: its start, and the processor time of each further MB of a training log."""

import tempfile
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
NOISE = "  some_argument_{n} ......................... {n}\n2026-08-21 14:03:27,481 - x.y - INFO - step {n} done\n"
END = "Traceback (most recent call last):\nRuntimeError: CUDA error: out of memory\n"


def diagnose_start() -> Result:
    """Time the diagnosis of a log of one line."""
    seconds = _seconds(END)
    return Result(
        "diagnose_start", "mbr-perf diagnose, a short log", median(seconds), GOAL_START_S, "CPU s", {"cpu_s": seconds}
    )


def diagnose_log() -> Result:
    """Time a log of 8 MB and one of 1 MB; half of the bytes are iterations."""
    large, small = (_seconds(_log(size * 1_000_000)) for size in (LARGE, SMALL))
    value = round((median(large) - median(small)) / (LARGE - SMALL), 4)
    details: dict[str, object] = {"cpu_s_large": large, "cpu_s_small": small}
    return Result("diagnose_log", "mbr-perf diagnose, per further MB of log", value, GOAL_S_PER_MB, "CPU s", details)


def _log(num_bytes: int) -> str:
    lines, size, number = [], 0, 0
    while size < num_bytes:
        number += 1
        text = STEP.format(n=number, ms=2800 + number % 97, loss=11.0 / number) + NOISE.format(n=number) * 3
        lines.append(text)
        size += len(text)
    return "".join(lines) + END


def _seconds(text: str) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        path.write_text(text)
        return [round(timed(mbr_perf("diagnose", str(path))).cpu_s, 3) for _ in range(REPEATS)]
