"""Clocks of a rank's GPU: only samples inside the window of steps count, and the power cap is no slowdown."""

import re

import pytest

from harness.judge.readings import clock_doubts, combined_clocks, rank_clocks, run_clocks
from harness.records.rank import CLOCK_REASONS, ClockSamples, Device, StepRecord
from harness.records.run import DeviceSample, NodeSample

CAP, IDLE, THERMAL = 0x04, 0x01, 0x40


def steps(count=10, each=1.0, begin=100.0):
    """Step n takes from ``begin`` + n to ``begin`` + n + 1 seconds."""
    return tuple(StepRecord(step=n, seconds=each, ended_s=begin + (n + 1) * each) for n in range(count))


@pytest.fixture(name="clocks")
def _clocks(make_spec, make_rank):
    """The clocks of rank 0 over steps 5 to 9 (105 s to 110 s), from looks (time, MHz, reasons)."""

    def over(looks, own_steps=None, window=(5, 10), **device):
        rank = make_rank(make_spec(), 0, device=Device(kind="cuda", name="H100", uuid="GPU-a"))
        rank = rank.model_copy(update={"steps": steps() if own_steps is None else own_steps})
        columns = list(zip(*looks, strict=True)) or [(), (), ()]
        samples = ClockSamples(times_s=columns[0], sm_clocks_mhz=columns[1], reasons=columns[2])
        sampled = DeviceSample(uuid="gpu-A", name="H100", index=0, num_samples=9, clocks=samples, **device)
        return rank_clocks([rank], [NodeSample(hostname="n", devices=(sampled,))], window)[0]

    return over


def every_half_second(reasons, mhz=1755, begin=100.0, count=40):
    return [(begin + n / 2, mhz, reasons) for n in range(count)]


def test_a_gpu_at_its_power_cap_all_the_time_is_no_doubt(clocks):
    own = clocks(every_half_second(CAP, mhz=1395))
    assert (own.over, own.power_cap_share, own.sm_clock_mhz, own.slowdowns) == ("window", 1.0, 1395.0, ())
    assert (own.num_samples, own.num_busy_samples, own.window_s) == (11, 11, 5.0)
    assert clock_doubts(own) == []


@pytest.mark.parametrize(("bit", "name"), [item for item in CLOCK_REASONS.items() if item[0] != CAP])
def test_every_slowdown_inside_the_window_is_a_doubt(clocks, bit, name):
    looks = [*every_half_second(CAP, count=13), (106.7, 1200, CAP | bit), *every_half_second(CAP, begin=107.0)]
    assert clock_doubts(clocks(looks)) == [f"was throttled: {name}"]


@pytest.mark.parametrize("outside_s", [104.99, 110.01])
def test_one_bit_outside_of_the_window_does_not_count(clocks, outside_s):
    looks = sorted([*every_half_second(0), (outside_s, 1200, THERMAL)])
    own = clocks(looks)
    assert (own.slowdowns, own.sm_clock_mhz, clock_doubts(own)) == ((), 1755.0, [])


def test_samples_far_apart_in_a_long_run_and_values_that_nvml_refuses_are_no_doubt(clocks):
    apart = clocks([(100.0 + 15 * n, 1755, 0) for n in range(100)], own_steps=steps(each=100.0))
    unknown = clocks([(100.0 + n / 2, None, None) for n in range(40)])
    assert (unknown.num_samples, unknown.power_cap_share, unknown.sm_clock_mhz) == (11, None, None)
    assert clock_doubts(apart) == clock_doubts(unknown) == []


def test_the_share_and_the_median_are_over_busy_samples(clocks):
    busy = [(105.0 + n, 1400 + n, CAP if n < 3 else 0) for n in range(4)]
    own = clocks([*busy, (109.2, 210, IDLE), (109.4, 210, IDLE)])
    assert (own.num_samples, own.num_busy_samples) == (6, 4)
    assert (own.power_cap_share, own.sm_clock_mhz) == (0.75, 1401.5)


def test_a_window_without_a_sample_is_a_doubt(clocks):
    own = clocks(every_half_second(CAP, count=10))  # until 104.5 s
    assert (own.num_samples, own.power_cap_share, own.sm_clock_mhz) == (0, None, None)
    assert [doubt.endswith(" 5.000 s") for doubt in clock_doubts(own)] == [True]


def test_a_sampler_that_stood_still_for_a_part_of_the_window_is_a_doubt(clocks):
    long_steps = steps(each=10.0)  # the window is from 150 s to 200 s
    frozen = [look for look in every_half_second(0, count=400) if not 160 < look[0] < 175]
    for looks, gap in ((frozen, "15 s"), (every_half_second(0, count=120), "40 s")):  # the second until 159.5 s
        (doubt,) = clock_doubts(clocks(looks, own_steps=long_steps))
        assert re.search(rf" {gap} .*\b50 s ", doubt)
    assert clock_doubts(clocks(every_half_second(0, count=400), own_steps=long_steps)) == []


def test_without_times_of_steps_the_whole_run_counts(clocks):
    own = clocks([(1.0, 1755, 0), (2.0, 1395, THERMAL)], own_steps=(StepRecord(step=7, seconds=1.0),))
    assert (own.over, own.num_samples, own.slowdowns) == ("run", 2, ("hw_thermal_slowdown",))


def test_the_slowest_and_the_most_capped_rank_stand_for_the_run(clocks):
    fast, capped = clocks(every_half_second(0, mhz=1755)), clocks(every_half_second(CAP, mhz=1600))
    slow = clocks(every_half_second(0, mhz=1500))
    run = run_clocks({0: fast, 1: capped, 2: slow})
    assert (run.sm_clock_mhz, run.slowest_rank, run.power_cap_share, run.most_capped_rank) == (1500.0, 2, 1.0, 1)
    assert run_clocks({}) is None
    other = run_clocks({0: fast})
    assert combined_clocks([run, other, other]).sm_clock_mhz == 1755.0
    whole = run_clocks({0: fast, 1: slow.model_copy(update={"over": "run"})})
    assert (run.over, whole.over) == ("window", "run")
    assert (combined_clocks([run, other]).over, combined_clocks([run, whole]).over) == ("window", "run")
    assert combined_clocks([run, None]) is None
