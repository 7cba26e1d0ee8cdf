"""The newest night against those before it."""

import random

import pytest

from harness.history.changes import LOOK_BACK, Trend, trend


def nights(num, *, seed, noise=0.01):
    draw = random.Random(seed)
    return [700.0 * (1 + draw.gauss(0, noise)) for _ in range(num)]


@pytest.mark.parametrize(
    ("factor", "better", "word"),
    [
        (0.94, "higher", "worse"),
        (1.06, "higher", "better"),
        (1.06, "lower", "worse"),
        (0.94, "lower", "better"),
        (0.94, "equal", "other"),
        (1.0, "higher", "steady"),
    ],
)
def test_a_change_beyond_noise_has_its_word_by_the_direction_of_the_figure(factor, better, word):
    assert trend([*nights(20, seed=1), 700.0 * factor], better).word == word


def test_noise_alone_is_nearly_always_steady():
    words = [trend(nights(21, seed=seed), "higher").word for seed in range(500)]
    assert 485 <= words.count("steady") <= 500


def test_the_level_is_that_since_the_last_step():
    newest = trend([*nights(10, seed=2), *(value * 0.9 for value in nights(10, seed=3)), 630.0], "higher")
    assert newest.level == pytest.approx(630.0, rel=0.01)
    assert newest.word == "steady"


def test_few_nights_are_new():
    assert trend([700.0, 500.0, 700.0], "higher") == Trend("new")
    assert trend([700.0], "higher") == Trend("new")


def test_figures_without_noise_may_change_by_two_thousandths():
    assert trend([58e9] * 6 + [58.1e9], "lower").word == "steady"
    assert trend([58e9] * 6 + [58.2e9], "lower").word == "worse"


def test_only_the_newest_nights_count():
    assert trend([1.0] * 50 + [700.0] * (LOOK_BACK + 1), "higher").level == 700.0
