"""How sure a change is: against tables, against Welch, and at the edges where too little is known."""

import math
import statistics

import pytest

from harness.nightly.evidence import Reference, evidence_of
from harness.nightly.known_noise import known_noise


@pytest.fixture(name="stats")
def _stats():
    """Imported by the tests that use it: the import takes longer than all tests of this file."""
    from scipy import stats

    return stats


ALIKE = [700.0, 707.0, 693.0, 703.0, 697.0]


def test_one_run_on_each_side_without_history_has_no_p_value():
    found = evidence_of([650.0], Reference(700.0, None, 1), None)
    assert (found.p_value, found.noise) == (None, None)
    assert found.basis == "noise unknown: one run on each side, no history"


def p_if_nights_differ(stats, change, runs, degrees):
    """Two nights that differ by 1 % each, known exactly, beside what runs add with so many degrees of freedom."""
    error = runs + 2 * 0.01**2
    return stats.t.sf(change / math.sqrt(error), error**2 / (runs**2 / degrees))


def test_two_sides_of_like_noise_are_students_test_with_the_goldens_median_worth_less_than_a_mean(stats):
    tonight, golden = [value * 0.96 for value in ALIKE], Reference(700.0, 0.0075, 5)
    found = evidence_of(tonight, golden, None)
    ours = statistics.variance([value / 700 for value in tonight])
    pooled = (ours + 0.0075**2) / 2
    stretched = max(ours, pooled)
    runs = stretched / 5 + 1.434 * pooled / 5
    assert stats.t.sf(0.04 / math.sqrt(runs), 8) < 1e-4
    assert found.p_value == pytest.approx(p_if_nights_differ(stats, 0.04, runs, 8), rel=1e-6)
    assert found.basis == "noise from these runs and the golden's runs"


def test_a_golden_of_one_run_is_compared_with_repeats_by_their_own_noise(stats):
    found = evidence_of([value * 0.96 for value in ALIKE], Reference(700.0, None, 1), None)
    sd = statistics.stdev([value * 0.96 / 700 for value in ALIKE])
    assert found.p_value == pytest.approx(p_if_nights_differ(stats, 0.04, sd**2 * (1 / 5 + 1), 4), rel=1e-6)


def test_one_run_is_judged_by_the_noise_of_earlier_nights():
    nights = [[700.0 + 7 * (-1) ** i] for i in range(20)]
    found = evidence_of([650.0], Reference(700.0, None, 1), known_noise(nights))
    assert found.p_value is not None and 1e-4 < found.p_value < 1e-2  # 7 %, by noise of 1 % whose tail nobody knows
    assert found.noise == pytest.approx(0.01 * math.sqrt(20 / 19))
    assert found.basis == "noise from 20 nights"


def test_nights_that_differ_more_than_their_runs_make_a_change_less_sure():
    same = [[699.0, 701.0, 700.0] for _ in range(10)]
    other = [[value + 14 * (-1) ** i for value in night] for i, night in enumerate(same)]
    tonight, golden = [679.0, 681.0, 680.0], Reference(700.0, 0.0015, 3)
    calm, restless = (evidence_of(tonight, golden, known_noise(nights)) for nights in (same, other))
    assert calm.p_value is not None and restless.p_value is not None
    assert calm.p_value < 1e-9
    assert restless.p_value > 0.01
    assert restless.noise == pytest.approx(0.02, rel=0.1)


def test_a_night_noisier_than_all_before_is_judged_by_its_own_noise():
    nights = [[700.0 + 0.7 * i for i in (-2, -1, 0, 1, 2)] for _ in range(20)]
    found = evidence_of([600.0, 720.0, 640.0, 700.0, 650.0], Reference(700.0, 0.0015, 5), known_noise(nights))
    assert found.p_value is not None and found.p_value > 0.01
    assert found.noise is not None and found.noise > 0.05


def test_runs_that_agree_to_the_last_digit_have_no_noise():
    worse = evidence_of([650.0] * 3, Reference(700.0, 0.0, 3), None)
    same = evidence_of([700.0] * 3, Reference(700.0, 0.0, 3), None)
    assert (worse.p_value, same.p_value) == (pytest.approx(worse.p_if_nights_differ), 1.0)
    assert worse.p_if_nights_differ is not None and worse.p_if_nights_differ < 1e-6
    nights = known_noise([[700.0] * 3] * 5)
    assert evidence_of([650.0] * 3, Reference(700.0, 0.0, 3), nights).p_value == 0.0


def test_the_level_of_the_nights_since_stands_in_for_a_golden_that_is_poorly_known():
    nights = [[693.0, 707.0, 700.0, 696.5, 703.5]] * 20
    tonight = [679.0, 672.0, 686.0, 675.5, 682.5]
    with_level, without = (known_noise(nights, num_before_golden=num) for num in (0, 20))
    golden = Reference(700.0, 0.0075, 1)
    sure, less_sure = evidence_of(tonight, golden, with_level), evidence_of(tonight, golden, without)
    assert sure.p_value is not None and less_sure.p_value is not None
    assert (sure.p_value < 1e-5, less_sure.p_value > 1e-4) == (True, True)


def test_runs_that_vary_more_than_before_need_the_evidence_of_a_noisier_night():
    history = known_noise([[693.0, 707.0, 700.0, 696.5, 703.5]] * 20)
    golden = Reference(700.0, 0.0075, 5)
    shapes = [[684.0 + times * x for x in (-5.0, 5.0, -2.5, 2.5, 0.0)] for times in (0.5, 1.0, 1.5, 2.0)]
    chances = [evidence_of(values, golden, history).p_value or 0.0 for values in shapes]
    assert chances == sorted(chances)
    assert 1e-6 < chances[1] < 1e-4
    assert chances[3] > 1e-3
