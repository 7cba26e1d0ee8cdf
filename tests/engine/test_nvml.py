"""The sampler and the listing, with the real binding over a scripted driver."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.engine.nvml_device import Neighbours, descends_from
from harness.records.launch import CLOCKS_REFUSED
from harness.records.run import NodeSample
from tests.native_libraries import scripted_nvml

GIB = 1024**3
NVML = (sys.executable, "-m", "harness.engine.nvml")
ENVIRONMENT_OF_TESTS = dict(os.environ)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A folder with the scripted libnvidia-ml.so.1."""
    return scripted_nvml(tmp_path_factory.mktemp("nvml"))


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
            deadline = time.monotonic() + 10
            while not out.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            yield process
        finally:
            process.terminate()


def sampled(environment, out, seconds, *arguments):
    with sampling(environment, out, *arguments):
        time.sleep(seconds)
    return NodeSample.model_validate_json(out.read_text())


def only(node):
    assert len(node.devices) == 1
    return node.devices[0]


def listing(environment):
    asked = subprocess.run(
        (sys.executable, "-m", "harness.engine.nvml_device", "list"),
        env=environment,
        capture_output=True,
        check=True,
        timeout=10,
    )
    return json.loads(asked.stdout)


@pytest.mark.slow
def test_gpus_are_listed_with_name_uuid_and_memory(driver):
    environment = driver("driver 570.1", "gpu 0 uuid=GPU-a total=85899345920", "gpu 1 uuid=GPU-b")
    name = "NVIDIA H100 80GB HBM3"
    assert listing(environment) == {
        "driver": "570.1",
        "cuda": "13.0",
        "gpus": [
            {"index": 0, "name": name, "uuid": "GPU-a", "total_bytes": 80 * GIB},
            {"index": 1, "name": name, "uuid": "GPU-b", "total_bytes": 80 * GIB},
        ],
    }


def test_a_machine_without_the_library_says_so():
    environment = {**ENVIRONMENT_OF_TESTS, "LD_LIBRARY_PATH": "/nonexistent"}
    assert listing(environment) == {"error": "NVML Shared Library Not Found (NVML 12)"}


def test_a_driver_that_is_not_loaded_says_so(library, tmp_path):
    environment = {**ENVIRONMENT_OF_TESTS, "LD_LIBRARY_PATH": str(library), "FAKE_NVML_STATE": str(tmp_path / "none")}
    assert listing(environment) == {"error": "Driver Not Loaded (NVML 9)"}


def test_one_gpu_that_cannot_be_talked_to_does_not_hide_the_other(driver):
    environment = driver("gpu 0 uuid=GPU-a", "gpu 1 uuid=GPU-b", "err nvmlDeviceGetUUID 15 -1 1")
    gpus = listing(environment)["gpus"]
    assert isinstance(gpus, list)
    assert [gpu.get("uuid") for gpu in gpus] == ["GPU-a", None]
    assert gpus[1]["error"] == "GPU is lost (NVML 15)"


def test_the_peak_of_a_spike_is_kept(driver, tmp_path):
    environment = driver(
        "gpu 0 uuid=GPU-a reserved=500000000",
        f"curve 0 step 0:{GIB} 300:{50 * GIB} 380:{2 * GIB}",
    )
    device = only(sampled(environment, tmp_path / "out.json", 0.8))
    assert (device.baseline_used_bytes, device.max_used_bytes) == (GIB, 50 * GIB)
    assert (device.uuid, device.total_bytes, device.reserved_bytes) == ("GPU-a", 80 * GIB, 500000000)
    assert (device.memory_api, device.error) == ("v2", None)
    assert device.num_samples > 10
    assert 0.005 < device.interval_s < 0.1


def test_devices_carry_their_uuid_whatever_their_order(driver, tmp_path):
    environment = driver("gpu 0 uuid=GPU-b used=1000", "gpu 1 uuid=GPU-a used=2000")
    node = sampled(environment, tmp_path / "out.json", 0.1)
    assert {d.uuid: d.max_used_bytes for d in node.devices} == {"GPU-b": 1000, "GPU-a": 2000}


def test_an_old_driver_is_read_through_v1_and_says_so(driver, tmp_path):
    environment = driver("gpu 0 uuid=GPU-a used=1000 reserved=500", "err nvmlDeviceGetMemoryInfo_v2 13")
    device = only(sampled(environment, tmp_path / "out.json", 0.1))
    assert (device.memory_api, device.max_used_bytes, device.reserved_bytes) == ("v1", 1500, None)


def test_a_gpu_lost_on_the_way_keeps_what_was_seen(driver, tmp_path):
    environment = driver(
        "gpu 0 uuid=GPU-a used=7000", "gpu 1 uuid=GPU-b used=8000", "err nvmlDeviceGetMemoryInfo_v2 15 300 1"
    )
    healthy, lost = sampled(environment, tmp_path / "out.json", 0.7).devices
    assert lost.error is not None
    assert lost.error.startswith("GPU is lost (NVML 15) after ")
    assert (lost.max_used_bytes, healthy.max_used_bytes, healthy.error) == (8000, 7000, None)
    assert healthy.num_samples > lost.num_samples


def test_memory_that_may_not_be_read_is_unknown_not_zero(driver, tmp_path):
    environment = driver("gpu 0 uuid=GPU-a used=7000", "err nvmlDeviceGetMemoryInfo_v2 4")
    device = only(sampled(environment, tmp_path / "out.json", 0.1))
    assert (device.max_used_bytes, device.baseline_used_bytes, device.total_bytes) == (None, None, None)
    assert device.error == "Insufficient Permissions (NVML 4) after 0 samples"


def test_values_that_nvml_refuses_are_absent(driver, tmp_path):
    environment = driver("gpu 0 used=1", "err nvmlDeviceGetPowerUsage 3", "err nvmlDeviceGetClockInfo 4")
    device = only(sampled(environment, tmp_path / "out.json", 0.1))
    assert (device.max_power_w, device.median_sm_clock_mhz, device.max_used_bytes) == (None, None, 1)


def test_throttling_is_named(driver, tmp_path):
    environment = driver("gpu 0 reasons=0x44 power_mw=699000 sm=1200")
    device = only(sampled(environment, tmp_path / "out.json", 0.1))
    assert device.throttle_reasons == ("sw_power_cap", "hw_thermal_slowdown")
    assert (device.max_power_w, device.median_sm_clock_mhz) == (699.0, 1200.0)


def test_the_clock_of_an_idle_gpu_does_not_count(driver, tmp_path):
    device = only(sampled(driver("gpu 0 reasons=0x1 sm=210"), tmp_path / "out.json", 0.1))
    assert (device.median_sm_clock_mhz, device.throttle_reasons) == (None, ())


def test_a_process_that_was_there_before_the_ranks_is_foreign(driver, tmp_path):
    environment = driver("gpu 0 used=1", f"proc 0 pid={os.getpid()} used={GIB}")
    device = only(sampled(environment, tmp_path / "out.json", 0.1))
    name = Path("/proc/self/comm").read_text().strip()
    assert device.foreign_processes == (f"pid {os.getpid()} {name}, 1.00 GiB",)


def test_a_process_that_the_driver_has_yet_to_take_from_its_list_is_not_foreign(driver, tmp_path):
    environment = driver("gpu 0 used=1", f"proc 0 pid={os.getpid()} used={GIB}")
    ends = threading.Timer(0.6, lambda: driver("gpu 0 used=1"))
    ends.start()
    assert only(sampled(environment, tmp_path / "out.json", 0.1)).foreign_processes == ()
    ends.join()


def test_ranks_are_distinguished_from_strangers_by_descent():
    with subprocess.Popen(["sleep", "30"]) as rank:
        neighbours = Neighbours(run_pid=os.getpid(), same_pids=True)
        neighbours.during_run({rank.pid: 10, 1: None})
        rank.kill()
    assert list(neighbours.foreign) == [1]
    assert neighbours.foreign[1].endswith("unknown memory")


def test_inside_a_container_a_stranger_is_only_unidentified():
    neighbours = Neighbours(run_pid=os.getpid(), same_pids=False)
    neighbours.during_run({4194305: 10})
    assert (neighbours.foreign, neighbours.unidentified) == ({}, {4194305})


def test_a_process_descends_from_its_parents_and_not_from_its_children():
    with subprocess.Popen(["sleep", "30"]) as child:
        assert descends_from(child.pid, os.getpid())
        assert not descends_from(os.getpid(), child.pid)
        child.kill()


def test_a_killed_sampler_leaves_what_it_saw(driver, tmp_path):
    out = tmp_path / "out.json"
    with sampling(driver("gpu 0 used=1234"), out) as process:
        process.kill()
        process.wait()
    assert only(NodeSample.model_validate_json(out.read_text())).max_used_bytes == 1234


def test_the_file_is_renewed_while_sampling(driver, tmp_path):
    out = tmp_path / "out.json"
    with sampling(driver("gpu 0 used=1234"), out) as process:
        time.sleep(2.5)
        process.kill()
        process.wait()
    assert only(NodeSample.model_validate_json(out.read_text())).num_samples > 10


def test_without_nvml_the_file_says_why(tmp_path):
    environment = {**ENVIRONMENT_OF_TESTS, "LD_LIBRARY_PATH": "/nonexistent"}
    node = sampled(environment, tmp_path / "out.json", 0.0)
    assert (node.devices, node.error) == ((), "NVML Shared Library Not Found (NVML 12)")


def test_the_sampler_ends_when_its_parent_is_killed(driver, tmp_path):
    _end_with_its_killed_parent((*NVML, "sample"), driver("gpu 0 used=1"), tmp_path)


def _end_with_its_killed_parent(sampler, environment, tmp_path):
    out, pid_file = tmp_path / "out.json", tmp_path / "pid"
    command = [*sampler, "--out", str(out)]
    parent_code = (
        f"import subprocess, time; p = subprocess.Popen({command!r}); open({str(pid_file)!r}, 'w').write(str(p.pid)); "
        "time.sleep(30)"
    )
    with subprocess.Popen([sys.executable, "-c", parent_code], env=environment) as parent:
        deadline = time.monotonic() + 10
        while not out.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        parent.send_signal(signal.SIGKILL)
    pid = int(pid_file.read_text())
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and _runs(pid):
        time.sleep(0.02)
    assert not _runs(pid)


TWO = ("gpu 0 used=1", "gpu 1 used=1")
LOCKS = ("--gpu_clock_mhz", "1400", "--memory_clock_mhz", "2619")


def clocks_of(environment):
    log = Path(environment["FAKE_NVML_STATE"] + ".clocks")
    return log.read_text().splitlines() if log.exists() else []


LOCKED = ["lock 0 1400", "lock_memory 0 2619", "lock 1 1400", "lock_memory 1 2619"]
RESET = ["reset 0 0", "reset_memory 0 0", "reset 1 0", "reset_memory 1 0"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_clocks_are_locked_before_the_first_look_and_reset_at_the_end(driver, tmp_path, number):
    environment = driver(*TWO)
    with sampling(environment, tmp_path / "out.json", *LOCKS) as sampler:
        assert clocks_of(environment) == LOCKED
        sampler.send_signal(number)
        assert sampler.wait(10) == 0
    assert clocks_of(environment) == LOCKED + RESET


def test_without_clocks_to_lock_none_is_touched(driver, tmp_path):
    environment = driver(*TWO)
    sampled(environment, tmp_path / "out.json", 0.0)
    assert clocks_of(environment) == []


def test_clocks_that_may_not_be_locked_stop_the_sampler_and_stay_as_they_were(driver, tmp_path):
    environment = driver(*TWO, "err nvmlDeviceSetGpuLockedClocks 4 -1 1")
    command = (*NVML, "sample", "--out", str(tmp_path / "out.json"), *LOCKS)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (CLOCKS_REFUSED, "Insufficient Permissions (NVML 4)\n")
    assert not (tmp_path / "out.json").exists()
    assert clocks_of(environment) == [*LOCKED[:2], *RESET]


def test_clocks_are_reset_when_the_parent_is_killed(driver, tmp_path):
    environment = driver(*TWO)
    _end_with_its_killed_parent((*NVML, "sample", *LOCKS), environment, tmp_path)
    assert clocks_of(environment) == LOCKED + RESET


def test_clocks_of_a_killed_sampler_can_be_reset(driver, tmp_path):
    environment = driver(*TWO)
    with sampling(environment, tmp_path / "out.json", *LOCKS) as sampler:
        sampler.kill()
        sampler.wait()
    assert clocks_of(environment) == LOCKED
    subprocess.run((*NVML, "reset", *LOCKS), env=environment, check=True, timeout=20)
    assert clocks_of(environment) == LOCKED + RESET


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
