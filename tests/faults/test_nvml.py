"""Faults of NVML in a run: a missing figure is unknown, and a reported disturbance prevents a verdict."""

import json
import time
from contextlib import contextmanager

import pytest

from harness.records.golden import golden_text
from harness.records.store import read_run
from tests.faults.at_work import PATIENCE_S

UNKNOWN = "Peak device used: "


@pytest.fixture(name="golden")
def _golden(tmp_path, make_golden):
    """A golden file of what a run without faults measured."""

    def write(record):
        path = tmp_path / "golden.json"
        path.write_text(golden_text(make_golden(record, {"peak_allocated_bytes": 58_000_000_000})))
        return path

    return write


@pytest.fixture(name="judged")
def _judged(run, stage, golden, mbr_perf, tmp_path):
    """A run under such a driver: its exit code, record and answer, and the exit code of its comparison."""

    @contextmanager
    def driver(*lines):
        stage.let_driver(*lines)
        yield
        stage.let_driver()

    def judge(*lines, at_work=lambda running: None, **behaviour):
        with driver(*lines), run("-v", **behaviour) as running:
            at_work(running)
            code, out, err = running.ended()
        (run_dir,) = (tmp_path / "results" / "runs").iterdir()
        record = read_run(run_dir)
        assert (code, record.status) == (0, "ok"), err
        assert [len(rank.steps) for rank in record.ranks] == [4, 4]
        compared = mbr_perf("compare", run_dir, golden(record), "--json")
        return record, out, (compared.code, json.loads(compared.out)["outcome"])

    return judge


@pytest.mark.slow
def test_a_healthy_driver_gives_every_figure_and_a_verdict(judged):
    record, _, verdict = judged()
    assert [device.max_used_bytes for device in record.nodes[0].devices] == [1_000_000_000] * 2
    assert (record.suspect, verdict) == ((), (0, "pass"))


@pytest.mark.slow
def test_without_nvml_the_run_goes_on_and_device_memory_is_unknown(judged, stage):
    library = stage.folder / "driver" / "libnvidia-ml.so.1"
    library.rename(library.with_name("away"))
    try:
        record, out, verdict = judged()
    finally:
        library.with_name("away").rename(library)
    assert (record.nodes[0].devices, record.nodes[0].error) == ((), "NVML Shared Library Not Found (NVML 12)")
    assert f"{UNKNOWN}NVML Shared Library Not Found (NVML 12)" in out
    assert verdict == (0, "pass")  # the golden asks for nothing that NVML alone knows


@pytest.mark.slow
def test_what_may_not_be_read_is_unknown_and_an_old_driver_is_read_by_its_old_way(judged):
    denied, old = "err nvmlDeviceGetMemoryInfo_v2 4 -1 0", "err nvmlDeviceGetMemoryInfo_v2 13 -1 1"
    record, _, verdict = judged(denied, old)
    forbidden, of_old_driver = record.nodes[0].devices
    assert (forbidden.max_used_bytes, forbidden.error) == (None, "Insufficient Permissions (NVML 4) after 0 samples")
    assert (of_old_driver.memory_api, of_old_driver.max_used_bytes) == ("v1", 1_000_000_000)
    assert (record.suspect, verdict) == ((), (0, "pass"))


@pytest.mark.slow
def test_a_gpu_that_is_lost_on_the_way_keeps_what_was_seen_and_forbids_a_verdict(judged, stage, only_run, tmp_path):
    go_on = tmp_path / "go_on"

    def lose_it(running):
        running.victims(rank=2, sampler=1)
        stage.let_driver("err nvmlDeviceGetMemoryInfo_v2 15 -1 1")
        sample = next((only_run() / "ranks").glob("nvml_*.json"))
        deadline = time.monotonic() + PATIENCE_S
        while "GPU is lost" not in sample.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        go_on.touch()

    record, _, verdict = judged(at_work=lose_it, wait=str(go_on))
    lost = record.nodes[0].devices[1]
    assert (lost.max_used_bytes, lost.error[:22]) == (1_000_000_000, "GPU is lost (NVML 15) ")
    (doubt,) = record.suspect
    assert "was not sampled to the end: GPU is lost (NVML 15) after" in doubt
    assert verdict == (6, "inconclusive")


@pytest.mark.slow
def test_another_process_and_a_throttled_clock_forbid_a_verdict(judged):
    record, _, verdict = judged("proc 0 pid=1 used=4294967296", "gpu 1 reasons=0x40")
    shared, throttled = record.suspect
    assert "GPU 0 of " in shared
    assert "was shared with pid 1 " in shared
    assert throttled.endswith("was throttled: hw_thermal_slowdown")
    assert verdict == (6, "inconclusive")


@pytest.mark.slow
def test_a_sampler_that_the_driver_never_answers_is_a_doubt_like_a_killed_one(judged, stage, tmp_path):
    go_on = tmp_path / "go_on"

    def freeze(running):
        running.victims(rank=2, sampler=1)
        stage.let_driver("delay_us nvmlDeviceGetMemoryInfo_v2 60000000")
        time.sleep(0.3)
        go_on.touch()

    record, _, verdict = judged(at_work=freeze, wait=str(go_on))
    assert record.suspect == (
        "the GPUs were not sampled to the end: the sampler hung: it did not end within 5 s; see logs/sampler.log",
    )
    assert verdict == (6, "inconclusive")
