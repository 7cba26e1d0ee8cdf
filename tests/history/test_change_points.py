"""Finds planted change points, and none in noise."""

import random

import pytest

from harness.history.changes import ChangePoint, change_points


def series(num, *, seed, noise=0.01, steps=()):
    """Throughput with noise between nights; each of ``steps`` is (night, relative change of the level from it on)."""
    draw = random.Random(seed)
    level = [700.0 * (1 + sum(change for at, change in steps if night >= at)) for night in range(num)]
    return [value * (1 + draw.gauss(0, noise)) for value in level]


def test_a_planted_step_is_found_where_it_is():
    (point,) = change_points(series(30, seed=1, steps=((15, -0.05),)))
    assert point.index == 15
    assert point.fraction == pytest.approx(-0.05, abs=0.01)
    assert point.p_value < 1e-6


def test_steps_of_5_percent_in_1_percent_noise_are_found_in_all_of_forty_series():
    found = [change_points(series(30, seed=seed, steps=((15, -0.05),))) for seed in range(40)]
    assert [seed for seed, points in enumerate(found) if not any(abs(p.index - 15) <= 2 for p in points)] == []


def test_in_noise_alone_hardly_any_is_found():
    found = [len(change_points(series(60, seed=seed, noise=0.02))) for seed in range(60)]
    assert sum(found) <= 2


def test_two_steps_are_two_points_with_the_levels_between():
    first, second = change_points(series(60, seed=3, steps=((20, -0.06), (40, 0.06))))
    assert (first.index, second.index) == (20, 40)
    assert first.after == second.before


def test_figures_without_noise_show_every_step_and_nothing_else():
    assert change_points([58e9] * 20) == ()
    assert change_points([58e9] * 10 + [60e9] * 10) == (ChangePoint(10, 58e9, 60e9, 0.0),)


def test_the_newest_nights_are_never_a_change_point():
    assert change_points(series(30, seed=4, steps=((29, -0.2),))) == ()
    assert change_points([700.0, 600.0, 700.0]) == ()
