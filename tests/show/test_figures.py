"""Figures carry their unit."""

import pytest

from harness.judge.gate import Finding, Verdict
from harness.records.metrics import BY_NAME, Summary
from harness.show.figures import allowed_change, change, figure, spread


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("tflops_per_gpu", 709.93, "709.93"),
        ("tflops_per_gpu", 0.0651234, "0.065123"),
        ("tokens_per_s_per_gpu", 14336.4, "14,336"),
        ("step_time_s", 0.0123, "12.3 ms"),
        ("peak_allocated_bytes", 58.8e9, "54.76 GiB"),
        ("counted_flops_per_step", 57_982_058_496, "57.982 GFLOP"),
        ("counted_flops_per_step", 12, "12 FLOP"),
        ("mfu", 0.382, "38.2 %"),
        ("peak_device_bytes", None, "-"),
    ],
)
def test_a_figure_is_shown_with_its_unit_or_under_a_title_that_has_it(name, value, shown):
    assert figure(BY_NAME[name], value) == shown


@pytest.mark.parametrize(
    ("name", "threshold", "shown"),
    [
        ("tflops_per_gpu", 0.05, "-5.0 %"), ("peak_allocated_bytes", 0.005, "+0.5 %"),
        ("counted_flops_per_step", 0.0, "equal"), ("step_time_s", None, "-"),
    ],
)  # fmt: skip
def test_the_allowed_change_has_the_sign_of_a_worsening(name, threshold, shown):
    assert allowed_change(BY_NAME[name], Finding(name, 1.0, 1.0, 0.0, threshold, Verdict.PASS)).endswith(shown)


@pytest.mark.parametrize(("value", "shown"), [(-0.1639, "-16.4 %"), (0.0, "+0.0 %"), (None, "-")])
def test_a_change_is_signed(value, shown):
    assert change(Finding("tflops_per_gpu", 1.0, 1.0, value, 0.05, Verdict.PASS)) == shown


def test_the_spread_is_relative_and_absent_from_one_step():
    assert spread(Summary(2.0, 2.0, 0.1, 3, (0, 3))) == "5.0 %"
    assert spread(Summary(2.0, 2.0, None, 1, (0, 1))) == "-"
