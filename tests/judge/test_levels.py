"""The steps of a series, and how much its nights differ."""

import random

import pytest

from harness.judge.levels import levels, spread_around, step_before


def test_a_step_is_seldom_found_where_there_is_none():
    draw = random.Random(1)
    found = sum(step_before([draw.gauss(0, 1) for _ in range(20)]) > 0 for _ in range(1000))
    assert found <= 20


def test_a_step_between_values_that_are_equal_otherwise_is_found():
    assert step_before([700.0, 700.0, 680.0, 680.0]) == 2
    assert step_before([700.0] * 5) == step_before([700.0] * 3 + [700.0000000001] * 3) == 0
    assert step_before([700.0, 680.0, 680.0]) == 0


def test_a_step_is_as_sure_as_students_test_of_its_sides_over_all_splits():
    values = [0.0, 1.0, 10.0, 11.0]  # t = sqrt(200) with 2 degrees: p = 1 - sqrt(200 / 202), at 3 places
    assert [step_before(values, alpha) for alpha in (0.0148, 0.0149)] == [0, 2]


def test_further_steps_are_found_where_they_are_clear():
    assert levels([1.0] * 5 + [2.0] * 5 + [3.0] * 5) == [range(5), range(5, 10), range(10, 15)]
    assert levels([1.0] * 5 + [5.0] * 5 + [6.0] * 4) == [range(5), range(5, 14)]


def test_the_spread_is_that_around_each_level_and_ignores_an_odd_night():
    values = [99.0, 100.0, 101.0, 102.0, 50.0, 198.0, 200.0, 202.0, 204.0, 200.0]
    assert spread_around(values, [range(5), range(5, 10)]) == pytest.approx(1.4826 * 0.01, rel=0.01)
    assert spread_around(values, [range(10)]) > 0.3
