"""Measures the cost of the NVML sampler: steps while it samples and while it is stopped, in turn in one run.

Without a GPU the real binding asks the scripted driver of the tests for eight GPUs. That shows the processor time which
the sampler takes from the ranks, here without a core of its own, and not what a real driver does when it is asked.
"""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paired import PAIRS, median_ms, pairs_of, ratio_of, train_pairs, understood_here
from processes import BenchmarkFailedError, cpu_seconds
from result import Result

from harness.launch.environment import this_host
from harness.records.launch import SAMPLE_INTERVAL_MS
from harness.records.run import NodeSample

GOAL = 1.01
NUM_GPUS = 8
SCRIPTED = Path(__file__).parents[2] / "tests" / "native" / "fake_nvml.c"


def sampler() -> Result:
    """Measure pairs of steps with the sampler at its default interval, and without."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        understood = understood_here(folder)
        is_cpu = understood.spec.gpu_type.is_cpu
        environment = dict(this_host().shell) | (scripted_driver(folder) if is_cpu else {})
        with sampling(folder, environment) as process:
            before, began = cpu_seconds(process.pid), time.perf_counter()
            train_pairs(understood, folder, PAIRS, str(process.pid))
            used, wall = cpu_seconds(process.pid) - before, time.perf_counter() - began
        pairs = pairs_of(folder, "sampled", "unsampled", PAIRS)
        seen = NodeSample.model_validate_json((folder / "nvml.json").read_text())
    sampled_s = wall - sum(off for _, off in pairs)  # it also samples while the ranks start
    found = ratio_of(pairs)
    details = {
        "sampled_ms": median_ms([on for on, _ in pairs]),
        "unsampled_ms": median_ms([off for _, off in pairs]),
        "interval_95": [round(found.low, 4), round(found.high, 4)],
        "num_pairs": len(pairs),
        "sampler_share_of_a_core": round(used / sampled_s, 5),
        "interval_ms": SAMPLE_INTERVAL_MS,
        "num_gpus": len(seen.devices),
        "num_samples_per_gpu": min(device.num_samples for device in seen.devices),
        "driver": "scripted" if is_cpu else seen.driver_version,
    }
    title = f"step time with the sampler over without, {understood.spec.recipe} on {understood.spec.gpu}"
    return Result("sampler", title, round(found.value, 4), GOAL, "ratio", details, found.doubt(GOAL), noise_lowers=True)


def scripted_driver(folder: Path) -> dict[str, str]:
    """Return variables with which NVML reports eight idle GPUs. BenchmarkFailedError without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise BenchmarkFailedError("the scripted driver must be compiled: install a C compiler (cc)")
    library = folder / "libnvidia-ml.so.1"
    shared = ("-shared", "-fPIC", "-O2", "-Wl,-soname,libnvidia-ml.so.1")
    subprocess.run((compiler, *shared, "-o", library, SCRIPTED, "-lpthread"), check=True, capture_output=True)
    state = folder / "state"
    gpus = [f"gpu {i} uuid=GPU-{i} total=85899345920 used=4000000000\n" for i in range(NUM_GPUS)]
    state.write_text("driver 580.65.06\n" + "".join(gpus))
    return {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML_STATE": str(state)}


@contextmanager
def sampling(folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a sampler and wait for its first sample. BenchmarkFailedError if that does not come."""
    out = folder / "nvml.json"
    words = ("-m", "harness.engine.nvml", "sample", "--out", str(out), "--interval_ms", str(SAMPLE_INTERVAL_MS))
    with subprocess.Popen((sys.executable, *words), env=environment) as process:
        try:
            deadline = time.monotonic() + 30
            while not out.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            if not out.exists() or NodeSample.model_validate_json(out.read_text()).error:
                raise BenchmarkFailedError("the sampler sees no GPU")
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
