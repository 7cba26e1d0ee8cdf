"""torch's own parts on a scripted GPU, and one whole run: what `.ci/run` has time for."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.scripted_cuda.conftest import LOCAL
from tests.scripted_cuda.lane import DEVICE_NAME

pytestmark = [pytest.mark.cuda, pytest.mark.slow]

PARTS = Path(__file__).with_name("torch_parts.py")


@pytest.fixture
def parts(machine):
    """Ask torch_parts.py on a machine."""

    def ask(*names, more=None, **changes):
        done = machine(num_devices=1, **changes).run(PARTS, *names, more=more)
        assert done.stdout, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return ask


def test_the_allocator_attention_and_graphs_are_torchs_own(parts):
    found, _ = parts("allocator", "attention", "graph", "out_of_memory", "side_stream")
    assert found["allocator"]["segments_mib"] == [20, 30, 300] and not found["allocator"]["expandable"]
    assert {"alloc", "free_completed", "segment_alloc"} <= set(found["allocator"]["actions"])
    assert found["allocator"]["free"] == 80 * 2**30 - 350 * 2**20
    assert "Cudnn" in found["attention"]["default"] and "Flash" in found["attention"]["FLASH_ATTENTION"]
    assert found["graph"] == {"pools": 2, "kept_inside": True, "kept_afterwards": False}
    assert "Tried to allocate 30.00 GiB" in found["out_of_memory"]["said"]
    assert (found["out_of_memory"]["num_ooms"], found["out_of_memory"]["retries"]) == (1, 1)
    assert found["side_stream"] == {"reused_at_once": True, "reused_later": True}


def test_expandable_segments_and_late_streams(parts):
    found, _ = parts(
        "allocator", "side_stream", busy=True, more={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    )
    assert found["allocator"]["expandable"]
    assert found["side_stream"] == {"reused_at_once": False, "reused_later": True}


def test_what_is_not_scripted_fails_by_name(parts):
    found, said = parts("unscripted")
    assert found["unscripted"]["failed"]
    assert "cublasDgemm_v2 is not scripted" in said


def test_a_whole_run_allocates_what_was_predicted(machine, whole_run):
    ran = whole_run(machine(num_devices=1), *LOCAL, "-ng", "1", "-tp", "1", "-gb", "4")
    assert ran.record["status"] == "ok"
    assert ran.peaks() == [43.29] and ran.peaks("max_reserved_bytes") == [43.87]
    assert ran.device_used == [43.87]  # NVML follows the scripted driver
    assert (
        abs(ran.record["prediction"]["peak_bytes"] / ran.record["ranks"][0]["memory"]["max_allocated_bytes"] - 1)
        < 0.002
    )


def test_a_probe_measures_every_part_on_a_gpu_whose_rates_are_no_constants(machine):
    here = machine(num_devices=1)
    done = here.mbr_perf("probe", "--out", here.folder / "probe.json", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)["probe"]
    assert (found["gpu"], found["device"]) == ("h100", DEVICE_NAME)
    assert {row["of"] for row in found["rows"]} == {
        "memory", "gemm_bf16", "gemm_low_precision", "attention", "launch_s", "call_s", "host_copy", "adam"
    }  # fmt: skip
    refused = here.mbr_perf("plan", "--calibrate", here.folder / "probe.json")
    assert (refused.returncode, DEVICE_NAME in refused.stderr) == (2, True)


def test_a_probe_beside_another_process_writes_no_file(machine):
    here = machine(num_devices=1)
    holds = "import torch; kept = torch.ones(1, device='cuda'); print('has', flush=True); input()"
    with here.started("-c", holds, stdin=subprocess.PIPE) as other:
        assert other.stdout.readline()
        done = here.mbr_perf("probe", "--out", here.folder / "probe.json")
        other.kill()
    assert (done.returncode, (here.folder / "probe.json").exists()) == (6, False)
