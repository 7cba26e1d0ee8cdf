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
    two = evidence_of(tonight, Reference(700.0, 0.0075, 2), None)
    assert found.basis == two.basis == "noise from these runs and the golden's runs"


def test_a_golden_of_one_run_is_compared_with_repeats_by_their_own_noise(stats):
    found = evidence_of([value * 0.96 for value in ALIKE], Reference(700.0, None, 1), None)
    sd = statistics.stdev([value * 0.96 / 700 for value in ALIKE])
    assert found.p_value == pytest.approx(p_if_nights_differ(stats, 0.04, sd**2 * (1 / 5 + 1), 4), rel=1e-6)


def test_runs_that_agree_to_the_last_digit_have_no_noise():
    worse = evidence_of([650.0] * 3, Reference(700.0, 0.0, 3), None)
    same = evidence_of([700.0] * 3, Reference(700.0, 0.0, 3), None)
    assert (worse.p_value, same.p_value) == (pytest.approx(worse.p_if_nights_differ), 1.0)
    assert worse.p_if_nights_differ is not None and worse.p_if_nights_differ < 1e-6
    nights = known_noise([[700.0] * 3] * 5)
    assert evidence_of([650.0] * 3, Reference(700.0, 0.0, 3), nights).p_value == 0.0
