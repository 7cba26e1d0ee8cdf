"""What ranks and the sampler recorded: the smallest figure that counts, and what is no figure."""

import math

import pytest

from harness.judge.derive import derive
from harness.judge.plausible import impossible
from harness.judge.plausible_golden import impossible_series
from harness.judge.plausible_ranks import SHORTEST_STEP_S
from harness.judge.readings import clock_doubts, device_used, is_victim
from harness.judge.statistics import relative_spread, t_upper_tail
from harness.records.rank import Device, Failure, RankClocks
from harness.records.run import DeviceSample, NodeSample
from harness.units import GIB


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
        ("error", "it broke", False),
        ("oom", "NCCL: out of memory", False),
    ],
)
def test_only_a_lost_peer_or_a_sigterm_makes_a_rank_a_victim(kind, message, is_explained):
    assert is_victim(Failure(kind=kind, message=message)) is is_explained


@pytest.mark.parametrize(("over", "window_s"), [("run", 5.0), ("window", None)])
def test_without_times_of_the_steps_no_gap_of_samples_is_known(over, window_s):
    assert clock_doubts(RankClocks(over=over, num_samples=0, window_s=window_s, longest_gap_s=99.0)) == []


def test_a_step_of_exactly_1_us_is_possible(make_record, make_spec):
    record = make_record(make_spec(gpu="cpu"), seconds=SHORTEST_STEP_S)
    assert impossible(record, derive(record)) == ()


@pytest.mark.parametrize(
    ("gpu", "dtype", "step", "peak", "sentences"),
    [
        ("cpu", "fp32", (1.0, None), 900 * GIB, ()),
        ("h100", "bf16", (1.0, 989.0), 119 * GIB, ()),
        ("h100", "bf16", (1.0, 1001.0), 1, ("the log: 1001 TFLOP/s/GPU are above the dense bf16 peak of h100, 989.4 TFLOP/s",)),
        ("h100", "bf16", (1.0, None), 121 * GIB, ("the log: Peak of 121.00 GiB is more than 1.5 times the memory of h100, 120.00 GiB",)),
        ("", "", (1.0, 1001.0), 0, ("the log: Peak of 0 bytes is not possible",)),
        ("", "", (SHORTEST_STEP_S, None), 1, ()),
    ],
)  # fmt: skip
def test_figures_of_a_log_are_compared_with_the_gpu_of_its_golden(gpu, dtype, step, peak, sentences):
    assert impossible_series("the log", [step], {"Peak": peak}, gpu, dtype) == sentences


def test_equal_figures_around_zero_have_no_relative_spread():
    assert relative_spread([0.0, 0.0]) is None
    assert relative_spread([-1.0, 1.0]) is None


def test_with_all_degrees_of_freedom_students_tail_is_that_of_the_normal_distribution():
    assert t_upper_tail(1.959964, math.inf) == pytest.approx(0.025, rel=1e-5)
