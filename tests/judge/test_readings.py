"""What ranks and the sampler recorded: the smallest figure that counts, and what is no figure."""

import pytest

from harness.judge.readings import clock_doubts, device_used, is_victim
from harness.judge.statistics import relative_spread
from harness.records.rank import Device, Failure, RankClocks
from harness.records.run import DeviceSample, NodeSample


@pytest.mark.parametrize(("num_samples", "peak"), [(0, None), (1, 7)])
def test_a_single_sample_of_a_gpu_is_a_reading(make_spec, make_rank, num_samples, peak):
    sampled = DeviceSample(uuid="GPU-1a", name="NVIDIA H100", index=0, max_used_bytes=7, num_samples=num_samples)
    rank = make_rank(make_spec(), 0, memory=None, device=Device(kind="cuda", name="NVIDIA H100", uuid="1a"))
    assert device_used([NodeSample(hostname="node0", devices=(sampled,))])(rank) == peak


@pytest.mark.parametrize(
    ("kind", "message", "is_explained"),
    [
        ("signal", "killed by SIGTERM", True),
        ("signal", "killed by SIGKILL", False),
        ("error", "Connection reset by peer", True),
        ("error", "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7", True),
        ("error", "NCCL error in: NCCLUtils.cpp:77, internal error", True),
        ("error", "NCCL error in: NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN)", False),
        ("error", "it broke", False),
        ("oom", "NCCL error in: NCCLUtils.cpp:77, internal error", False),
    ],
)
def test_only_a_lost_peer_or_a_sigterm_makes_a_rank_a_victim(kind, message, is_explained):
    assert is_victim(Failure(kind=kind, message=message)) is is_explained


@pytest.mark.parametrize(("over", "window_s"), [("run", 5.0), ("window", None)])
def test_without_times_of_the_steps_no_gap_of_samples_is_known(over, window_s):
    assert clock_doubts(RankClocks(over=over, num_samples=0, window_s=window_s, longest_gap_s=99.0)) == []


def test_equal_figures_around_zero_have_no_relative_spread():
    assert relative_spread([0.0, 0.0]) is None
    assert relative_spread([-1.0, 1.0]) is None
