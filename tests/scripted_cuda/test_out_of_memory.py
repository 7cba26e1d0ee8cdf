"""Runs on scripted GPUs that run out of memory: torch's own error, exit 4, and what `diagnose` makes of it."""

import json
import shlex

import pytest

from tests.scripted_cuda.conftest import LOCAL

pytestmark = [pytest.mark.cuda, pytest.mark.slow]

GIB = 2**30
ONE = ("-ng", "1", "-tp", "1", "-gb", "2")


FULL = ("--num_layers", "12", "--recompute", "full:uniform:12")  # the backward pass runs them all again


@pytest.mark.parametrize(
    ("gib", "phase", "step", "more"),
    [
        (6, "build_model", None, ()),
        (20, "forward_backward", 0, ()),  # in forward: the logits
        (40, "forward_backward", 0, FULL),  # in backward
        (30, "optimizer_step", 0, ()),
        (36, "forward_backward", 1, ()),
    ],
)
def test_memory_ends_in_every_phase(machine, whole_run, gib, phase, step, more):
    here = machine(num_devices=1, device_bytes=gib * GIB)
    ran = whole_run(here, *LOCAL, *ONE, *more, "--snapshot_on_oom")
    failure = ran.record["ranks"][0]["failure"]
    assert (ran.code, ran.record["status"], failure["kind"]) == (4, "oom", "oom")
    assert (failure["phase"], failure["step"]) == (phase, step)
    log = (ran.folders[0] / "logs" / "rank_000.log").read_text()
    assert ("in backward_step" in log) == (more == FULL)
    assert f" {gib}.00 GiB" in failure["message"]
    answer = json.loads(here.mbr_perf("diagnose", ran.folders[0], "--json").stdout)["verdict"]
    assert (answer["class"], answer["request_bytes"]) == ("capacity", failure["request_bytes"])
    snapshot = here.mbr_perf("snapshot", ran.folders[0] / "ranks" / "snapshot_000.pickle", "--json")
    (device,) = json.loads(snapshot.stdout)["devices"]
    assert device["reserved_bytes"] <= gib * GIB < device["reserved_bytes"] + failure["request_bytes"]
    assert device["has_expandable_segments"] and device["holders"]


def test_another_process_on_the_card_leaves_less(machine, whole_run):
    here = machine(num_devices=1)
    takes = "import torch, sys; kept = torch.empty(40 << 30, dtype=torch.uint8, device='cuda'); print('has', flush=True); sys.stdin.read()"
    with here.started("-c", takes, stdin=-1) as other:
        assert other.stdout.readline() == "has\n"
        ran = whole_run(here, *LOCAL, *ONE)
        other.stdin.close()
    assert ran.code == 4
    assert f"Process {other.pid} has 40.0" in ran.record["ranks"][0]["failure"]["message"]
    answer = json.loads(here.mbr_perf("diagnose", ran.folders[0], "--json").stdout)["verdict"]
    assert answer["class"] == "other_process"


def test_expandable_segments_cure_memory_in_pieces_as_diagnose_says(machine, whole_run):
    here = machine(num_devices=1)
    native = ("-E", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False")
    ran = whole_run(here, *LOCAL, *ONE, "-mb", "3", "-gb", "6", "-ms", "2", *native)
    assert (ran.code, ran.peaks(), ran.peaks("max_reserved_bytes")) == (4, [60.64], [70.78])
    answer = json.loads(here.mbr_perf("diagnose", ran.folders[0], "--json").stdout)
    assert (answer["verdict"]["class"], answer["allocator"]["remedy"]) == ("capacity", "expandable_segments")
    cure, *_ = answer["fixes"]
    tried = here.mbr_perf(*shlex.split(cure["command"])[1:], "--results_dir", here.folder / "cure", "--json")
    cured = json.loads(tried.stdout)
    peaks = [cured["metrics"][name]["value"] for name in ("peak_allocated_bytes", "peak_reserved_bytes")]
    assert cured["outcome"] == "pass"
    assert [round(peak / GIB, 2) for peak in peaks] == [72.37, 73.11]
