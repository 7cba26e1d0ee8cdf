"""Student's t and Welch's interval against published values."""

import pytest

from harness.judge.statistics import half_width, t_cumulative, t_quantile, time_change


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (60, 2.000), (120, 1.980)],
)
def test_the_quantile_is_that_of_the_printed_table(degrees: int, expected: float):
    assert t_quantile(0.975, degrees) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("probability", "expected"), [(0.9, 1.372), (0.95, 1.812), (0.99, 2.764), (0.995, 3.169)])
def test_other_levels_are_those_of_the_printed_table(probability: float, expected: float):
    assert t_quantile(probability, 10) == pytest.approx(expected, abs=5e-4)


def test_quantile_and_distribution_undo_each_other_for_fractional_degrees():
    assert t_cumulative(t_quantile(0.975, 2.94), 2.94) == pytest.approx(0.975, abs=1e-12)


@pytest.mark.parametrize(("probability", "degrees"), [(0.3, 5), (1.0, 5), (0.975, 0)])
def test_arguments_out_of_range_are_refused(probability: float, degrees: float):
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(probability, degrees)


def test_the_worked_example_of_the_docstring():
    assert half_width((1.0, 2.0, 3.0), (2.0, 4.0, 6.0)) == pytest.approx(4.155, abs=1e-3)


def test_two_runs_have_no_interval():
    assert half_width((1.0, 2.0), (1.0, 2.0, 3.0)) is None


def test_runs_without_spread_have_an_interval_of_no_width():
    change = time_change((1.1, 1.1, 1.1), (1.0, 1.0, 1.0), (None, None))

    assert change.fraction == pytest.approx(0.1)
    assert change.interval == pytest.approx((0.1, 0.1))


def test_a_change_within_the_noise_is_not_settled():
    noisy = time_change((1.00, 1.10, 1.05), (1.02, 1.08, 0.99), (None, None))
    clear = time_change((1.50, 1.51, 1.52), (1.00, 1.01, 1.02), (None, None))

    assert noisy.is_settled is False
    assert clear.is_settled is True


def test_one_run_each_states_the_spread_of_its_steps():
    change = time_change((1.1,), (1.0,), (0.02, 0.03))

    assert change.interval is None
    assert change.basis == (
        "1 run each; an interval needs at least 3; steps of this cell spread by 2.0 % (standard deviation), "
        "steps of the control spread by 3.0 % (standard deviation)"
    )


def test_two_runs_each_state_how_far_they_are_apart():
    assert "runs of this cell differ by 10.0 %" in time_change((0.95, 1.05), (1.0, 1.0), (None, None)).basis


def test_half_of_the_distribution_lies_below_nought():
    assert t_quantile(0.5, 10) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("probability", "degrees"), [(0.49, 10), (1.0, 10), (0.9, 0.0)])
def test_a_quantile_out_of_range_is_refused(probability, degrees):
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(probability, degrees)
