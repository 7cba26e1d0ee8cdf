"""Statistics and levels of figures, by hand."""

import random

import pytest

from harness.judge.readings import clock_doubts, device_used, is_victim
from harness.judge.statistics import (
    half_width,
    levels,
    relative_spread,
    spread_around,
    step_before,
    t_quantile,
    t_upper_tail,
    time_change,
    welch,
)
from harness.records.rank import Device, Failure, RankClocks
from harness.records.run import DeviceSample, NodeSample


def test_the_worked_example_of_the_docstring_and_the_printed_tables():
    found = welch((1.0, 2.0, 3.0), (2.0, 4.0, 6.0))
    assert (found.difference, found.error, found.degrees) == pytest.approx((2.0, 1.291, 2.941), abs=1e-3)
    assert found.half_width() == half_width((1.0, 2.0, 3.0), (2.0, 4.0, 6.0)) == pytest.approx(4.155, abs=1e-3)
    assert found.half_width(1 - found.p_value) == pytest.approx(2.0)
    assert t_quantile(0.975, 10) == pytest.approx(2.228, abs=5e-4)
    assert t_upper_tail(4.0, 68) == pytest.approx(7.94e-5, rel=1e-3)
    assert t_upper_tail(1.645, float("inf")) == pytest.approx(0.05, rel=1e-3)


def test_one_in_a_hundred_equal_sides_looks_unequal():
    draw = random.Random(5)

    def side():
        return [draw.gauss(700, 7) for _ in range(4)]

    assert 15 <= sum(welch(side(), side()).p_value <= 0.01 for _ in range(4000)) <= 60


def test_runs_without_spread_have_an_interval_of_no_width_and_two_runs_none():
    change = time_change((1.1, 1.1, 1.1), (1.0, 1.0, 1.0))
    assert change.fraction == pytest.approx(0.1)
    assert change.interval == pytest.approx((0.1, 0.1))
    assert (welch((1.0, 1.0), (1.0, 1.0)).p_value, welch((1.0, 1.0), (1.1, 1.1)).p_value) == (1.0, 0.0)
    assert half_width((1.0, 2.0), (1.0, 2.0, 3.0)) is None
    assert relative_spread([0.0, 0.0]) is relative_spread([-1.0, 1.0]) is None


def test_an_interval_is_a_share_of_the_control():
    cell, control = (2.0, 2.2, 2.4), (4.0, 4.0, 4.3)
    half = half_width(cell, control) / 4.1
    assert time_change(cell, control).interval == pytest.approx((2.2 / 4.1 - 1 - half, 2.2 / 4.1 - 1 + half))


def test_a_change_within_the_noise_is_not_settled():
    noisy = time_change((1.00, 1.10, 1.05), (1.02, 1.08, 0.99))
    clear = time_change((1.50, 1.51, 1.52), (1.00, 1.01, 1.02))
    assert noisy.is_settled is False
    assert clear.is_settled is True


def test_a_step_is_seldom_found_where_there_is_none():
    draw = random.Random(1)
    found = sum(step_before([draw.gauss(0, 1) for _ in range(20)]) > 0 for _ in range(1000))
    assert found <= 20


def test_a_step_between_values_that_are_equal_otherwise_is_found_and_as_sure_as_students_test_over_all_splits():
    assert step_before([700.0, 700.0, 680.0, 680.0]) == 2
    assert step_before([700.0] * 5) == step_before([700.0] * 3 + [700.0000000001] * 3) == 0
    assert step_before([700.0, 680.0, 680.0]) == 0
    values = [0.0, 1.0, 10.0, 11.0]  # t = sqrt(200) with 2 degrees: p = 1 - sqrt(200 / 202), at 3 places
    assert [step_before(values, alpha) for alpha in (0.0148, 0.0149)] == [0, 2]


def test_further_steps_are_found_where_they_are_clear():
    assert levels([1.0] * 5 + [2.0] * 5 + [3.0] * 5) == [range(5), range(5, 10), range(10, 15)]
    assert levels([1.0] * 5 + [5.0] * 5 + [6.0] * 4) == [range(5), range(5, 14)]


def test_the_spread_is_that_around_each_level_and_ignores_an_odd_night():
    values = [99.0, 100.0, 101.0, 102.0, 50.0, 198.0, 200.0, 202.0, 204.0, 200.0]
    assert spread_around(values, [range(5), range(5, 10)]) == pytest.approx(1.4826 * 0.01, rel=0.01)
    assert spread_around(values, [range(10)]) > 0.3


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
