"""Faults of NVML in a run: a missing figure is unknown, and a reported disturbance prevents a verdict."""

import json
import time
from contextlib import contextmanager

import pytest

from harness.records.golden import golden_text
from harness.records.store import read_run

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
def test_another_process_and_a_throttled_clock_forbid_a_verdict(judged):
    record, _, verdict = judged("proc 0 pid=1 used=4294967296", "gpu 1 reasons=0x40")
    shared, throttled = record.suspect
    assert "GPU 0 of " in shared
    assert " pid 1 " in shared
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
    assert [" 5 s; see logs/sampler.log" in why for why in record.suspect] == [True]
    assert verdict == (6, "inconclusive")
