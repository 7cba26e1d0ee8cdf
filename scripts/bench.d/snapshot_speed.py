"""Measures the opening of a large memory snapshot: seconds per 100 MB, and the memory of the process."""

import pickle
import random
import sys
import tempfile
from functools import cache
from pathlib import Path

from processes import mbr_perf, timed
from result import Result

MEGABYTES = 1000
GOAL_S_PER_100_MB, GOAL_GB = 60.0, 2.0
DEPTH, NUM_FRAMES, NUM_STACKS = 45, 800, 3000
SEED = 1
BYTES_PER_EVENT = 266  # of the pickle, with stacks of that depth
# Of the tool and of the process that it opens the file in, whichever is larger.
_WITH_PEAK = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)"
)


def snapshot_seconds() -> Result:
    """Time `mbr-perf snapshot FILE --json`."""
    num_bytes, wall_s, cpu_s, peak_bytes = _measured()
    title = f"mbr-perf snapshot, {num_bytes / 1e6:.0f} MB, per 100 MB"
    details: dict[str, object] = {"wall_s": wall_s, "cpu_s": cpu_s, "file_bytes": num_bytes, "peak_bytes": peak_bytes}
    return Result("snapshot_seconds", title, round(wall_s / num_bytes * 1e8, 3), GOAL_S_PER_100_MB, "s", details)


def snapshot_memory() -> Result:
    """Return the largest process of the same."""
    num_bytes, _, _, peak_bytes = _measured()
    details: dict[str, object] = {
        "file_bytes": num_bytes,
        "bytes_per_byte": round(peak_bytes / num_bytes, 2),
        "what": f"highest resident memory; stacks of {DEPTH} frames",
    }
    title = f"mbr-perf snapshot, {num_bytes / 1e6:.0f} MB, peak memory"
    return Result("snapshot_memory", title, round(peak_bytes / 1e9, 3), GOAL_GB, "GB", details)


@cache
def _measured() -> tuple[int, float, float, int]:
    """Return bytes of the file, wall and processor seconds, bytes of memory."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "large.pickle"
        # A process of its own, so that its memory is free again before anything is measured.
        timed((sys.executable, __file__, str(path), str(MEGABYTES * 1_000_000 // BYTES_PER_EVENT)))
        run = timed((sys.executable, "-c", _WITH_PEAK, *mbr_perf("snapshot", str(path), "--json")))
        return path.stat().st_size, round(run.wall_s, 2), round(run.cpu_s, 2), int(run.stdout)


def write_snapshot(path: Path, num_events: int) -> None:
    """Write a history of ``num_events`` as torch does: frames are shared, every event has a list of its own."""
    draw = random.Random(SEED)  # noqa: S311 (no secret)
    root = "/opt/venv/lib/python3.12/site-packages/megatron/core"
    frames = [
        {"filename": f"{root}/transformer/file_{number % 90}.py", "line": number, "name": f"function_{number}"}
        for number in range(NUM_FRAMES)
    ]
    stacks = [draw.choices(frames, k=DEPTH) for _ in range(NUM_STACKS)]
    trace = [_event(number, stacks[number // 3 % NUM_STACKS]) for number in range(num_events)]
    segment = {
        "device": 0, "address": 1 << 40, "total_size": 2 << 20, "stream": 0, "segment_type": "small",
        "segment_pool_id": (0, 0),
        "blocks": [{"address": 1 << 40, "size": 2 << 20, "requested_size": 0, "state": "inactive", "frames": []}],
    }  # fmt: skip
    with path.open("wb") as file:
        pickle.dump({"segments": [segment], "device_traces": [trace]}, file)


def _event(number: int, stack: list[dict[str, object]]) -> dict[str, object]:
    """Make an event: allocated, to be freed, freed; a thousand blocks later its address is used again."""
    block, what = divmod(number, 3)
    return {
        "action": ("alloc", "free_requested", "free_completed")[what],
        "addr": (1 << 40) + block % 1000 * (1 << 20), "size": 512 * (block % 2000 + 1), "stream": 0,
        "time_us": 1_700_000_000_000_000 + number * 7, "compile_context": "N/A", "user_metadata": "",
        "frames": list(stack),
    }  # fmt: skip


if __name__ == "__main__":
    write_snapshot(Path(sys.argv[1]), int(sys.argv[2]))
