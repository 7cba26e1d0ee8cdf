"""Welch's test and Student's tail against published values."""

import random
import re

import pytest

from harness.judge.statistics import (
    half_width,
    t_quantile,
    t_upper_tail,
    time_change,
    welch,
)


def test_quantiles_and_tails_are_those_of_the_printed_tables():
    assert t_quantile(0.975, 10) == pytest.approx(2.228, abs=5e-4)
    assert t_upper_tail(4.0, 68) == pytest.approx(7.94e-5, rel=1e-3)
    assert t_upper_tail(1.645, float("inf")) == pytest.approx(0.05, rel=1e-3)


def test_the_worked_example_of_the_docstring():
    found = welch((1.0, 2.0, 3.0), (2.0, 4.0, 6.0))
    assert (found.difference, found.error, found.degrees) == pytest.approx((2.0, 1.291, 2.941), abs=1e-3)
    assert found.half_width() == half_width((1.0, 2.0, 3.0), (2.0, 4.0, 6.0)) == pytest.approx(4.155, abs=1e-3)
    assert found.half_width(1 - found.p_value) == pytest.approx(2.0)


def test_one_in_a_hundred_equal_sides_looks_unequal():
    draw = random.Random(5)

    def side():
        return [draw.gauss(700, 7) for _ in range(4)]

    assert 15 <= sum(welch(side(), side()).p_value <= 0.01 for _ in range(4000)) <= 60


def test_two_runs_have_no_interval():
    assert half_width((1.0, 2.0), (1.0, 2.0, 3.0)) is None


def test_runs_without_spread_have_an_interval_of_no_width():
    change = time_change((1.1, 1.1, 1.1), (1.0, 1.0, 1.0), (None, None))

    assert change.fraction == pytest.approx(0.1)
    assert change.interval == pytest.approx((0.1, 0.1))
    assert (welch((1.0, 1.0), (1.0, 1.0)).p_value, welch((1.0, 1.0), (1.1, 1.1)).p_value) == (1.0, 0.0)


def test_an_interval_is_a_share_of_the_control():
    cell, control = (2.0, 2.2, 2.4), (4.0, 4.0, 4.3)
    half = half_width(cell, control) / 4.1
    assert time_change(cell, control, (None, None)).interval == pytest.approx(
        (2.2 / 4.1 - 1 - half, 2.2 / 4.1 - 1 + half)
    )


def test_a_change_within_the_noise_is_not_settled():
    noisy = time_change((1.00, 1.10, 1.05), (1.02, 1.08, 0.99), (None, None))
    clear = time_change((1.50, 1.51, 1.52), (1.00, 1.01, 1.02), (None, None))

    assert noisy.is_settled is False
    assert clear.is_settled is True


def test_few_runs_state_how_far_they_are_apart_or_the_spread_of_their_steps():
    one = time_change((1.1,), (1.0,), (0.2, 0.03))
    assert one.interval is None
    assert re.search("steps .* 20.0 %", one.basis)
    assert re.search("runs .* 10.0 %", time_change((0.95, 1.05), (1.0, 1.0), (None, None)).basis)
