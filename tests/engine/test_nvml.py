"""The sampler and the listing, with the real binding over a scripted driver; a long run keeps a bounded number of looks."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.engine.nvml import MAX_SAMPLES, ClockRecorder
from harness.engine.nvml_device import Neighbours, descends_from
from harness.records.run import NodeSample
from tests.waiting import runs, wait_until

GIB = 1024**3
NVML = (sys.executable, "-m", "harness.engine.nvml")
ENVIRONMENT_OF_TESTS = dict(os.environ)


@pytest.fixture
def driver(library, tmp_path):
    """The environment in which NVML plays the given state lines."""

    def environment(*lines):
        state = tmp_path / "state"
        state.write_text("\n".join(lines) + "\n")
        return {**ENVIRONMENT_OF_TESTS, "LD_LIBRARY_PATH": str(library), "FAKE_NVML_STATE": str(state)}

    return environment


@contextmanager
def sampling(environment, out, *arguments):
    """A sampler that has had its first look."""
    command = (*NVML, "sample", "--out", str(out), "--interval_ms", "10", *arguments)
    with subprocess.Popen(command, env=environment) as process:
        try:
            wait_until(lambda: out.exists() or process.poll() is not None)
            yield process
        finally:
            process.terminate()


def sampled(environment, out, seconds=0.1, *arguments):
    with sampling(environment, out, *arguments):
        time.sleep(seconds)
    return NodeSample.model_validate_json(out.read_text())


def listing(environment):
    command = (sys.executable, "-m", "harness.engine.nvml_device", "list")
    return json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=10).stdout)


@pytest.mark.slow
def test_gpus_are_listed_with_name_uuid_and_memory_and_one_that_is_lost_does_not_hide_the_other(driver):
    environment = driver(
        "driver 570.1", "gpu 0 uuid=GPU-a total=85899345920", "gpu 1 uuid=GPU-b", "err nvmlDeviceGetUUID 15 -1 1"
    )
    found = listing(environment)
    assert (found["driver"], found["cuda"]) == ("570.1", "13.0")
    first, lost = found["gpus"]
    assert first == {"index": 0, "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-a", "total_bytes": 80 * GIB}
    assert (lost.get("uuid"), lost["error"]) == (None, "GPU is lost (NVML 15)")


@pytest.mark.slow
def test_a_machine_without_library_or_driver_says_so(library, tmp_path):
    nowhere = ENVIRONMENT_OF_TESTS | {"LD_LIBRARY_PATH": "/nonexistent"}
    unloaded = ENVIRONMENT_OF_TESTS | {"LD_LIBRARY_PATH": str(library), "FAKE_NVML_STATE": str(tmp_path / "none")}
    assert listing(nowhere) == {"error": "NVML Shared Library Not Found (NVML 12)"}
    assert listing(unloaded) == {"error": "Driver Not Loaded (NVML 9)"}
    node = sampled(nowhere, tmp_path / "out.json", 0.0)
    assert (node.devices, node.error) == ((), "NVML Shared Library Not Found (NVML 12)")


def test_the_peak_of_a_spike_is_kept(driver, tmp_path):
    environment = driver("gpu 0 uuid=GPU-a reserved=500000000", f"curve 0 step 0:{GIB} 300:{50 * GIB} 380:{2 * GIB}")
    (device,) = sampled(environment, tmp_path / "out.json", 0.8).devices
    assert device.max_used_bytes == 50 * GIB
    assert (device.uuid, device.total_bytes, device.reserved_bytes) == ("GPU-a", 80 * GIB, 500000000)
    assert device.error is None
    assert device.num_samples > 10
    assert 0.005 < device.interval_s < 0.1


@pytest.mark.slow
def test_a_gpu_lost_on_the_way_keeps_what_was_seen(driver, tmp_path):
    environment = driver(
        "gpu 0 uuid=GPU-a used=7000", "gpu 1 uuid=GPU-b used=8000", "err nvmlDeviceGetMemoryInfo_v2 15 300 1"
    )
    healthy, lost = sampled(environment, tmp_path / "out.json", 0.7).devices
    assert lost.error.startswith("GPU is lost (NVML 15) after ")
    assert (lost.max_used_bytes, healthy.max_used_bytes, healthy.error) == (8000, 7000, None)
    assert healthy.num_samples > lost.num_samples


# What the driver says of each GPU, the functions that fail for it, and what is recorded.
ANSWERS = {
    "memory may not be read": (("used=7000", "nvmlDeviceGetMemoryInfo_v2 4"),
                               {"max_used_bytes": None, "total_bytes": None,
                                "error": "Insufficient Permissions (NVML 4) after 0 samples"}),
    "values are refused": (("used=1", "nvmlDeviceGetPowerUsage 3", "nvmlDeviceGetClockInfo 4"),
                           {"max_power_w": None, "median_sm_clock_mhz": None, "max_used_bytes": 1}),
    "throttled": (("reasons=0x44 power_mw=699000 sm=1200",),
                  {"throttle_reasons": ("sw_power_cap", "hw_thermal_slowdown"), "max_power_w": 699.0,
                   "median_sm_clock_mhz": 1200.0}),
    "idle": (("reasons=0x1 sm=210",), {"median_sm_clock_mhz": None, "throttle_reasons": ()}),
}  # fmt: skip


def test_what_the_driver_does_not_say_is_absent(driver, tmp_path):
    said = [(number, *lines) for number, (lines, _) in enumerate(ANSWERS.values())]
    gpus = [f"gpu {number} {state}" for number, state, *_ in said]
    errors = [f"err {error} -1 {number}" for number, _, *failing in said for error in failing]
    devices = sampled(driver(*gpus, *errors), tmp_path / "out.json").devices
    for device, (what, (_, expected)) in zip(devices, ANSWERS.items(), strict=True):
        assert {name: getattr(device, name) for name in expected} == expected, what


@pytest.mark.slow
@pytest.mark.parametrize("ends", [False, True], ids=["stays", "the driver has yet to take it from its list"])
def test_a_process_that_was_there_before_the_ranks_is_foreign_unless_it_has_ended(driver, tmp_path, ends):
    environment = driver("gpu 0 used=1", f"proc 0 pid={os.getpid()} used={GIB}")
    ending = threading.Timer(0.6, lambda: driver("gpu 0 used=1") if ends else None)
    ending.start()
    (device,) = sampled(environment, tmp_path / "out.json").devices
    name = Path("/proc/self/comm").read_text().strip()
    assert device.foreign_processes == (() if ends else (f"pid {os.getpid()} {name}, 1.00 GiB",))
    ending.join()


def test_ranks_are_distinguished_from_strangers_by_descent():
    with subprocess.Popen(["sleep", "30"]) as rank:
        assert descends_from(rank.pid, os.getpid()) and not descends_from(os.getpid(), rank.pid)
        neighbours = Neighbours(run_pid=os.getpid(), same_pids=True)
        neighbours.during_run({rank.pid: 10, 1: None})
        rank.kill()
    assert list(neighbours.foreign) == [1]
    assert neighbours.foreign[1].endswith("unknown memory")
    in_a_container = Neighbours(run_pid=os.getpid(), same_pids=False)
    in_a_container.during_run({4194305: 10})
    assert (in_a_container.foreign, in_a_container.unidentified) == ({}, {4194305})


@pytest.mark.slow
def test_a_killed_sampler_leaves_what_it_saw_until_then(driver, tmp_path):
    out = tmp_path / "out.json"
    with sampling(driver("gpu 0 used=1234"), out) as process:
        time.sleep(2.5)
        process.kill()
        process.wait()
    (device,) = NodeSample.model_validate_json(out.read_text()).devices
    assert device.max_used_bytes == 1234 and device.num_samples > 10


TWO = ("gpu 0 used=1", "gpu 1 used=1")


def test_the_sampler_ends_with_its_killed_parent(driver, tmp_path):
    environment = driver(*TWO)
    out, pid_file = tmp_path / "out.json", tmp_path / "pid"
    command = [*NVML, "sample", "--out", str(out)]
    parent_code = (
        f"import subprocess, time; p = subprocess.Popen({command!r}); open({str(pid_file)!r}, 'w').write(str(p.pid)); "
        "time.sleep(30)"
    )
    with subprocess.Popen([sys.executable, "-c", parent_code], env=environment) as parent:
        wait_until(out.exists)
        parent.kill()
    pid = int(pid_file.read_text())
    assert wait_until(lambda: not runs(pid))


CAP, THERMAL = 0x04, 0x40


def test_a_long_run_keeps_a_bounded_number_of_looks_and_every_slowdown():
    recorder, at = ClockRecorder(0.1), 0.0
    for number in range(10 * MAX_SAMPLES):
        if at >= recorder.due_s:
            recorder.add(at, 1755, THERMAL if number == 333 else CAP if number % 2 else 0)
        at += 0.1
    samples = recorder.samples()
    assert MAX_SAMPLES / 2 <= len(samples.times_s) <= MAX_SAMPLES
    assert samples.times_s == tuple(sorted(samples.times_s))
    assert sum(reasons == THERMAL for reasons in samples.reasons) == 1
    assert recorder.every_s > 0.1
    assert recorder.reasons_seen() == ("sw_power_cap", "hw_thermal_slowdown")


def test_without_a_look_there_is_nothing_to_keep():
    assert ClockRecorder(0.1).samples() is None
    assert ClockRecorder(0.1).median_busy_mhz() is None
